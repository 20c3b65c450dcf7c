"""DistributedDataParallel."""

import torch
import torch.distributed as dist
from common import arguments, join
from models import MODELS, batch, loss_of, optimizer_of
from torch.nn.parallel import DistributedDataParallel

args = arguments()
device = join(args)
torch.manual_seed(0)
model = DistributedDataParallel(MODELS[args.model]().to(device))
optimizer = optimizer_of(args.model, model.parameters())
x, y = batch(args.model, device)
for _ in range(args.steps):
    loss = loss_of(args.model, model(x), y)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
print("loss", loss.item())
dist.destroy_process_group()
