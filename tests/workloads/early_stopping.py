"""Best-checkpoint and early-stopping logic that reads losses on the host and decides on all ranks alike."""

import io
import math

import torch
import torch.distributed as dist
from common import say, start
from torch import nn
from torch.nn.parallel import DistributedDataParallel

rank, world, device = start()
model = DistributedDataParallel(nn.Linear(64, 1).to(device), device_ids=[device.index])
optimizer = torch.optim.Adam(model.parameters())
plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=1)
best, bad, saved = math.inf, 0, 0
for epoch in range(20):
    for _ in range(2):
        loss = model(torch.randn(8, 64, device=device)).pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    with torch.no_grad():
        validation = model(torch.randn(8, 64, device=device)).pow(2).mean()
    dist.all_reduce(validation)
    value = (validation / world).item()
    assert math.isfinite(value) and value > 0
    plateau.step(value)
    if value < best:
        best, bad, saved = value, 0, saved + 1
        buffer = io.BytesIO()
        torch.save(model.module.state_dict(), buffer)
    else:
        bad += 1
    stop = torch.tensor(int(bad >= 3), device=device)
    dist.all_reduce(stop, op=dist.ReduceOp.MAX)
    if stop.item():
        break
assert saved >= 5, "a healthy run improves for a while"
say(f"stopped after epoch {epoch}, best {best:.4f}, saved {saved} times")
dist.destroy_process_group()
