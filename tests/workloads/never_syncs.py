"""A loop that never waits for the device until the very end: the launch queue alone holds it back."""

import time

import torch
import torch.distributed as dist
from common import say, start

rank, world, device = start()
a = torch.randn(4096, 4096, device=device, dtype=torch.bfloat16)
weight = torch.nn.Parameter(torch.randn(4096, 4096, device=device, dtype=torch.bfloat16))
optimizer = torch.optim.SGD([weight], lr=0.1)
begin = time.perf_counter()
for step in range(20):
    x = a
    for _ in range(100):
        x = x @ weight
    x.sum().backward()
    dist.all_reduce(weight.grad, op=dist.ReduceOp.AVG)
    optimizer.step()
    optimizer.zero_grad()
launched = time.perf_counter()
torch.cuda.synchronize()
done = time.perf_counter()
say(f"launch loop {launched - begin:.3f} s, until the device was done {done - begin:.3f} s")
dist.destroy_process_group()
