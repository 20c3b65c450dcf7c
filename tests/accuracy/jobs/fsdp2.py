"""FSDP2 (fully_shard), every block its own unit."""

import torch
import torch.distributed as dist
from common import arguments, join
from models import MODELS, batch, loss_of, optimizer_of
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

args = arguments(models=("gpt", "mlp"))
device = join(args)
torch.manual_seed(0)
mesh = init_device_mesh(args.device, (dist.get_world_size(),))
model = MODELS[args.model]().to(device)
for layer in (
    model.blocks if args.model == "gpt" else [m for m in model.layers if isinstance(m, torch.nn.Linear)]
):
    fully_shard(layer, mesh=mesh)
fully_shard(model, mesh=mesh)
optimizer = optimizer_of(args.model, model.parameters())
x, y = batch(args.model, device)
for _ in range(args.steps):
    loss = loss_of(args.model, model(x), y)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
print("loss", loss.item())
dist.destroy_process_group()
