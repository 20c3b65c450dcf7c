"""One rank of the Gloo sweep: real collectives among processes of this machine, timed one by one.

They are met as in a training step: every rank computes before it calls, but for the receiver of a message,
which is there first and sleeps. Otherwise Gloo's threads find a core that is awake and free, and no transfer
waits for the scheduler as those of a step do. A call lasts from the last rank's arrival until the last rank
goes on.

Run by :mod:`phantom.localcpu.gloo`; prints one JSON line on rank 0.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable

COMPUTE_S = 0.002
"""Computation before each call; that of a layer, and long enough for idle threads to fall asleep."""

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
    return (lambda: dist.send(whole, 1)) if rank == 0 else (lambda: dist.recv(whole, 0))


def time_calls(kind: str, size_bytes: int, repetitions: int) -> list[float]:
    """Times calls of one kind and size; returns the seconds of each, on every rank the same."""
    import torch
    import torch.distributed as dist

    call = call_of(kind, size_bytes)
    takes_part = kind != "p2p" or dist.get_rank() <= 1
    computes = kind != "p2p" or dist.get_rank() == 0
    matrix = torch.ones(256, 256)
    for _ in range(2 if takes_part else 0):
        call()
    stamps = torch.zeros(repetitions, 2, dtype=torch.int64)
    for index in range(repetitions):
        if kind == "p2p":
            dist.barrier()
        deadline_ns = time.perf_counter_ns() + int(COMPUTE_S * 1e9)
        while computes and time.perf_counter_ns() < deadline_ns:
            torch.mm(matrix, matrix)
        if takes_part:
            stamps[index, 0] = time.perf_counter_ns()  # one clock for all processes of the machine
            call()
            stamps[index, 1] = time.perf_counter_ns()
    dist.all_reduce(stamps, op=dist.ReduceOp.MAX)
    return [int(end_ns - begin_ns) * 1e-9 for begin_ns, end_ns in stamps]


def main() -> None:
    """Times every kind and size of the request in argv[1]: {"sizes": [...], "repetitions": n}."""
    import torch
    import torch.distributed as dist

    request = json.loads(sys.argv[1])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rows = [
        {
            "kind": kind,
            "bytes": size_bytes,
            "samples_s": time_calls(kind, size_bytes, request["repetitions"]),
        }
        for kind in KINDS
        for size_bytes in request["sizes"]
    ]
    if dist.get_rank() == 0:
        print(json.dumps({"world_size": dist.get_world_size(), "rows": rows}), flush=True)
    dist.destroy_process_group()
    sys.stdout.flush()
    os._exit(0)  # Gloo's threads sometimes outlive the group


if __name__ == "__main__":
    main()
