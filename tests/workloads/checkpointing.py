"""Activation checkpointing that saves and restores the RNG state around dropout; DDP with unused parameters."""

import torch
import torch.distributed as dist
from common import say, start
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Linear(512, 512), nn.GELU(), nn.Dropout(0.2)) for _ in range(6)
        )
        self.sometimes = nn.Linear(512, 512)
        self.head = nn.Linear(512, 16)

    def forward(self, x: torch.Tensor, use: bool, reentrant: bool) -> torch.Tensor:
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=reentrant, preserve_rng_state=True)
        if use:
            x = self.sometimes(x)
        return self.head(x)


rank, world, device = start()
net = DistributedDataParallel(Net().to(device), device_ids=[device.index], find_unused_parameters=True)
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
before = torch.cuda.get_rng_state()
for step in range(5):
    x = torch.randn(64, 512, device=device, requires_grad=True)
    out = net(x, step % 2 == 0, False)
    out.float().pow(2).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    say(f"step {step} allocated {torch.cuda.memory_allocated()}")
torch.cuda.set_rng_state(before)
assert torch.equal(torch.cuda.get_rng_state(), before)
dist.destroy_process_group()
