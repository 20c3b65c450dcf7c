"""Tensor parallel: the wide products of each block split over the ranks."""

import torch
import torch.distributed as dist
from common import arguments, join
from models import Gpt, batch, loss_of, optimizer_of
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

args = arguments(models=("gpt",))
device = join(args)
torch.manual_seed(0)
mesh = init_device_mesh(args.device, (dist.get_world_size(),))
model = Gpt().to(device)
for block in model.blocks:
    parallelize_module(block, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
optimizer = optimizer_of("gpt", model.parameters())
x, y = batch("gpt", device)
for _ in range(args.steps):
    loss = loss_of("gpt", model(x), y)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
print("loss", loss.item())
dist.destroy_process_group()
