"""A model of 7B parameters, initialised on the CPU and moved to the GPU (needs little memory under the simulator)."""

import resource
import sys

import torch
import torch.distributed as dist
from common import say, start
from torch import nn

rank, world, device = start()
width, layers = 4096, int(sys.argv[1]) if len(sys.argv) > 1 else 32
torch.set_default_dtype(torch.bfloat16)


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.q, self.k, self.v, self.o = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.up, self.down = nn.Linear(width, 4 * width, bias=False), nn.Linear(4 * width, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(x)
        return x + self.o(self.q(y) + self.k(y) + self.v(y)) + self.down(torch.nn.functional.silu(self.up(y)))


model = nn.Sequential(
    nn.Embedding(32000, width), *(Layer() for _ in range(layers)), nn.Linear(width, 32000, bias=False)
)
parameters = sum(p.numel() for p in model.parameters())
model = model.to(device)
out = model(torch.randint(0, 32000, (1, 128), device=device))
out.float().logsumexp(-1).mean().backward()
for p in model.parameters():
    dist.all_reduce(p.grad)
torch.optim.SGD(model.parameters(), lr=0.1).step()
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
say(
    f"{parameters / 1e9:.2f}B parameters, resident {peak / 2**30:.2f} GiB, allocated {torch.cuda.max_memory_allocated() / 2**30:.1f} GiB"
)
assert peak < 2 * 2**30, f"rank {rank} used {peak / 2**30:.2f} GiB of real memory"
dist.destroy_process_group()
