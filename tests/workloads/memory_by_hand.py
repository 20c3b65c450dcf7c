"""One matrix product forward and backward whose peak memory can be computed by hand (printed, checked by the test)."""

import os

import torch
import torch.distributed as dist

device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
torch.cuda.set_device(device)
dist.init_process_group("nccl")
weight = torch.nn.Parameter(torch.empty(1024, 1024, device=device))  # 4 MiB
x = torch.empty(1024, 1024, device=device)  # 4 MiB
grad = torch.empty(1024, 1024, device=device)  # 4 MiB
y = x @ weight  # 4 MiB and a cuBLAS workspace
y.backward(grad)  # weight.grad: 4 MiB; the backward thread has a cuBLAS handle and a workspace of its own
torch.optim.SGD([weight], lr=0.1).step()
print("allocated", torch.cuda.max_memory_allocated(), "reserved", torch.cuda.max_memory_reserved())
dist.destroy_process_group()
