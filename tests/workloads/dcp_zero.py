"""ZeroRedundancyOptimizer, torch.save/load of a state dict, torch.distributed.checkpoint save and load."""

import os
import tempfile

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from common import say, start
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

rank, world, device = start()
model = nn.Sequential(nn.Linear(128, 256), nn.LayerNorm(256), nn.Linear(256, 128)).to(device)
ddp = DistributedDataParallel(model, device_ids=[device.index], static_graph=True)
optimizer = ZeroRedundancyOptimizer(ddp.parameters(), optimizer_class=torch.optim.AdamW, lr=1e-3)
for step in range(4):
    ddp(torch.randn(16, 128, device=device)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
folder = [tempfile.mkdtemp(prefix="phantom-dcp-") if rank == 0 else None]
dist.broadcast_object_list(folder, src=0)
assert folder[0] and os.path.isdir(folder[0]), "every rank must know the folder that rank 0 chose"
dcp.save({"model": model.state_dict(), "step": 4}, checkpoint_id=folder[0])
state = {"model": model.state_dict(), "step": 0}
dcp.load(state, checkpoint_id=folder[0])
assert state["step"] == 4
if rank == 0:
    path = os.path.join(folder[0], "plain.pt")
    torch.save({"model": model.state_dict(), "epoch": 3}, path)
    loaded = torch.load(path, map_location=device)
    assert loaded["epoch"] == 3 and loaded["model"]["0.weight"].device == device
    model.load_state_dict(loaded["model"])
optimizer.consolidate_state_dict(to=0)
say("saved", sorted(os.listdir(folder[0]))[:2])
dist.barrier()
dist.destroy_process_group()
