"""DeepSpeed's own reports: wall clock breakdown, throughput, communication log, memory, beside a stopwatch."""

import argparse
import time

import deepspeed
import torch

parser = argparse.ArgumentParser()
parser.add_argument("--local_rank", type=int, default=-1)
parser.add_argument("--steps", type=int, default=8)
arguments = parser.parse_args()
config = {
    "train_micro_batch_size_per_gpu": 512,
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}},
    "bf16": {"enabled": True},
    "zero_optimization": {"stage": 1},
    "steps_per_print": 4,
    "wall_clock_breakdown": True,
    "comms_logger": {"enabled": True, "verbose": False, "prof_all": True},
    "timers": {"throughput": {"enabled": True, "synchronized": True}},
}
deepspeed.init_distributed()
deepspeed.utils.logging.set_log_level_from_string("info")
torch.manual_seed(0)
model = torch.nn.Sequential(*(torch.nn.Linear(4096, 4096) for _ in range(8)))
engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
data = torch.randn(512, 4096, device=engine.device, dtype=torch.bfloat16)
for step in range(arguments.steps):
    torch.cuda.synchronize()
    started = time.perf_counter()
    engine.backward(engine(data).float().mean())
    engine.step()
    torch.cuda.synchronize()
    if engine.global_rank == 0:
        print(f"stopwatch {1e3 * (time.perf_counter() - started):.3f} ms", flush=True)
deepspeed.comm.log_summary()
if engine.global_rank == 0:
    print(f"peak {torch.cuda.max_memory_allocated()}", flush=True)
torch.distributed.destroy_process_group()
