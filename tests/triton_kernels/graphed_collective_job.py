"""A CUDA graph with kernels on two streams and a collective, replayed."""

import json
import os

import torch
import torch.distributed as dist

REPLAYS = 5

dist.init_process_group("nccl")
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
x = torch.zeros(1 << 24, device="cuda")


def body() -> torch.Tensor:
    y = x * 2
    work = dist.all_reduce(y, async_op=True)
    z = x.exp()
    work.wait()
    return y + z


side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    body()
torch.cuda.current_stream().wait_stream(side)
torch.cuda.synchronize()


def timed_ms(call) -> float:
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    call()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end)


eager_ms = timed_ms(body)
graph = torch.cuda.CUDAGraph()
before_ms = timed_ms(lambda: None)
with torch.cuda.graph(graph):
    out = body()
replays_ms = [timed_ms(graph.replay) for _ in range(REPLAYS)]
print(json.dumps({"eager_ms": eager_ms, "replays_ms": replays_ms}), flush=True)
dist.destroy_process_group()
