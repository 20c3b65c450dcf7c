"""One rank of the Gloo sweep: real collectives among processes of this machine, timed one by one.

Run by :mod:`phantom.localcpu.gloo`; prints one JSON line on rank 0.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable

KINDS = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "p2p")


def call_of(kind: str, size_bytes: int) -> Callable[[], object]:
    """Returns a call of `kind` that carries `size_bytes`, as a training step issues it.

    The size counts as in netsim: the larger of input and output (of one rank).
    """
    import torch
    import torch.distributed as dist

    world, rank = dist.get_world_size(), dist.get_rank()
    elements = max(size_bytes // 4 // world * world, world)
    whole, part = torch.ones(elements), torch.ones(elements // world)
    if kind == "all_reduce":
        return lambda: dist.all_reduce(whole)
    if kind == "all_gather":
        return lambda: dist.all_gather_into_tensor(whole, part)
    if kind == "reduce_scatter":
        return lambda: dist.reduce_scatter_tensor(part, whole)
    if kind == "broadcast":
        return lambda: dist.broadcast(whole, 0)
    assert kind == "p2p"
    if rank > 1:
        return lambda: None
    return (lambda: dist.send(whole, 1)) if rank == 0 else (lambda: dist.recv(whole, 0))


def main() -> None:
    """Times every kind and size of the request in argv[1]: {"sizes": [...], "repetitions": n}."""
    import torch
    import torch.distributed as dist

    request = json.loads(sys.argv[1])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rows = []
    for kind in KINDS:
        for size_bytes in request["sizes"]:
            call = call_of(kind, size_bytes)
            for _ in range(2):
                call()
            samples = []
            for _ in range(request["repetitions"]):
                dist.barrier()
                begin_ns = time.perf_counter_ns()
                call()
                took = torch.tensor([time.perf_counter_ns() - begin_ns])
                dist.all_reduce(took, op=dist.ReduceOp.MAX)  # done when its last rank is done
                samples.append(int(took) * 1e-9)
            rows.append({"kind": kind, "bytes": size_bytes, "samples_s": samples})
    if dist.get_rank() == 0:
        print(json.dumps({"world_size": dist.get_world_size(), "rows": rows}), flush=True)
    dist.destroy_process_group()
    sys.stdout.flush()
    os._exit(0)  # Gloo's threads sometimes outlive the group


if __name__ == "__main__":
    main()
