"""One process, no parallelism."""

import torch
from common import arguments, device_of
from models import MODELS, batch, loss_of, optimizer_of

args = arguments()
device = device_of(args)
torch.manual_seed(0)
model = MODELS[args.model]().to(device)
optimizer = optimizer_of(args.model, model.parameters())
x, y = batch(args.model, device)
for _ in range(args.steps):
    loss = loss_of(args.model, model(x), y)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
print("loss", loss.item())
