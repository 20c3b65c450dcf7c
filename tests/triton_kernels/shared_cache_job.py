"""Every rank compiles the same two regions; prints how many kernels it compiled and how many it found."""

import json
import os

import torch
import torch.distributed as dist
import triton

found = {"compiled": 0, "found": 0, "rank": int(os.environ["RANK"])}


def listen(*, cache_hit: bool, **_: object) -> None:
    found["found" if cache_hit else "compiled"] += 1


triton.knobs.compilation.listener = listen

dist.init_process_group("nccl")
device = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(device)
model = torch.nn.Sequential(torch.nn.LayerNorm(128), torch.nn.GELU(), torch.nn.LayerNorm(128)).cuda()
compiled = torch.compile(model)
x = torch.randn(64, 128, device="cuda", requires_grad=True)
for _ in range(2):
    out = compiled(x)
    out.sum().backward()
    dist.all_reduce(x.grad)
torch.cuda.synchronize()
print(json.dumps(found), flush=True)
dist.destroy_process_group()
