"""Real time per simulated step: an 8-layer transformer on one rank, and under FSDP2 on 8 ranks.

Everything is on (costs, records, accounting); the jobs run under `phantom run` as a user's would. Targets: at most 8 ms of
CPU time per rank and step for the plain transformer (799 operators); the FSDP2 figure stands beside it.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

JOB = """
import json, os, sys, time
import torch, torch.distributed as dist, torch.nn as nn
from torch.distributed.fsdp import fully_shard
device = torch.device("cuda", int(os.environ["LOCAL_RANK"])); torch.cuda.set_device(device)
dist.init_process_group("nccl")
layer = lambda: nn.TransformerEncoderLayer(512, 8, 2048, dropout=0.0, batch_first=True, activation="gelu")
model = nn.Sequential(*(layer() for _ in range(8))).to(device)
if sys.argv[1] == "fsdp2":
    for block in model: fully_shard(block)
    fully_shard(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
x = torch.randn(8, 256, 512, device=device)
cpu, real = [], []
for step in range(30):
    c, r = time.clock_gettime(time.CLOCK_PROCESS_CPUTIME_ID), time.clock_gettime(time.CLOCK_MONOTONIC_RAW)
    with torch.autocast("cuda", dtype=torch.bfloat16): loss = model(x).square().mean()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step(); optimizer.zero_grad()
    cpu.append(time.clock_gettime(time.CLOCK_PROCESS_CPUTIME_ID) - c); real.append(time.clock_gettime(time.CLOCK_MONOTONIC_RAW) - r)
if dist.get_rank() == 0: print("RESULT", json.dumps([cpu[5:], real[5:]]))
dist.destroy_process_group()
"""


def measure(kind: str, gpus: int) -> None:
    """Runs one job and prints its figures."""
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder, "job.py")
        script.write_text(JOB)
        out = Path(folder, "run")
        command = [sys.executable, "-m", "phantom.cli.main", "run", "-q", "--out", str(out), "-G", str(gpus)]
        subprocess.run([*command, str(script), kind], check=True, capture_output=True)
        line = next(text for text in (out / "ranks" / "0.log").read_text().splitlines() if "RESULT" in text)
        cpu_s, real_s = json.loads(line.split("RESULT", 1)[1])
        summary = json.loads((out / "summary.json").read_text())
    ops = summary["ranks"][0]["ops"] / len(summary["steps"])
    print(
        f"{kind:12} {gpus} rank(s): {ops:6.0f} operators a step, CPU {statistics.median(cpu_s) * 1e3:6.2f} ms, "
        f"real {statistics.median(real_s) * 1e3:6.2f} ms per rank and step (best {min(real_s) * 1e3:.2f}); "
        f"virtual step {summary['step_virtual_s']['median'] * 1e3:.2f} ms"
    )


if __name__ == "__main__":
    measure("plain", 1)
    measure("fsdp2", 8)
