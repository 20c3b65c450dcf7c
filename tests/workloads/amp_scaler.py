"""fp16 autocast with GradScaler, gradient clipping, gradient accumulation under no_sync."""

import torch
import torch.distributed as dist
from common import say, start
from torch import nn
from torch.nn.parallel import DistributedDataParallel

rank, world, device = start()
model = nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Dropout(0.1), nn.Linear(1024, 10)).to(device)
model = DistributedDataParallel(model, device_ids=[device.index])
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
scaler = torch.amp.GradScaler("cuda")
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=6)
accumulate = 4
for step in range(6):
    for micro in range(accumulate):
        x, y = torch.randn(32, 256, device=device), torch.randint(0, 10, (32,), device=device)
        last = micro == accumulate - 1
        with torch.autocast("cuda", dtype=torch.float16):
            if last:
                loss = nn.functional.cross_entropy(model(x), y) / accumulate
            else:
                with model.no_sync():
                    loss = nn.functional.cross_entropy(model(x), y) / accumulate
                    scaler.scale(loss).backward()
                continue
        scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
    schedule.step()
    assert torch.isfinite(norm).item()
    say(
        f"step {step} loss {loss.item():.3f} scale {scaler.get_scale():.0f} lr {schedule.get_last_lr()[0]:.4f}"
    )
assert scaler.get_scale() == 65536.0, "a healthy run never lowers the scale in six steps"
dist.destroy_process_group()
