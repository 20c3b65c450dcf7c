"""The job of step_time.py: an 8-layer transformer that prints its own real time per step."""

import json
import os
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

WARM_UP = 5

device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
torch.cuda.set_device(device)
dist.init_process_group("nccl")
blocks = [
    nn.TransformerEncoderLayer(512, 8, 2048, dropout=0.0, batch_first=True, activation="gelu")
    for _ in range(8)
]
model = nn.Sequential(*blocks).to(device)
if sys.argv[1] == "fsdp2":
    for block in blocks:
        fully_shard(block)
    fully_shard(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
x = torch.randn(8, 256, 512, device=device)
cpu_s, real_s = [], []
for _ in range(30):
    # clock_gettime is not virtual: this is the simulator's own time, not the simulated one.
    cpu, real = (
        time.clock_gettime(time.CLOCK_PROCESS_CPUTIME_ID),
        time.clock_gettime(time.CLOCK_MONOTONIC_RAW),
    )
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = model(x).square().mean()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    cpu_s.append(time.clock_gettime(time.CLOCK_PROCESS_CPUTIME_ID) - cpu)
    real_s.append(time.clock_gettime(time.CLOCK_MONOTONIC_RAW) - real)
if dist.get_rank() == 0:
    print("RESULT", json.dumps([cpu_s[WARM_UP:], real_s[WARM_UP:]]))
dist.destroy_process_group()
