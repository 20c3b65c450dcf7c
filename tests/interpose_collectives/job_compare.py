"""A job: every collective on valued device tensors must give what Gloo gives for the same inputs on the CPU.

Run by test_collectives_values.py under `phantom run`; prints one line per case on rank 0 and fails loudly.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

Case = Callable[[str, Any, torch.dtype], list[torch.Tensor]]

RANK = 0
WORLD = 1


def ramp(numel: int, dtype: torch.dtype, *, rank: int | None = None, start: int = 1) -> torch.Tensor:
    """Small values that differ per rank and that every dtype represents, sums of them included."""
    rank = RANK if rank is None else rank
    values = (torch.arange(numel) * 3 + start + 5 * rank) % 7
    if dtype is torch.bool:
        return values % 2 == 0
    return values.to(dtype)


def all_reduce(device: str, group: Any, dtype: torch.dtype) -> list[torch.Tensor]:
    """sum, max, min, product"""
    out = []
    for op in (dist.ReduceOp.SUM, dist.ReduceOp.MAX, dist.ReduceOp.MIN, dist.ReduceOp.PRODUCT):
        if dtype is torch.bool and op is not dist.ReduceOp.SUM:
            continue
        tensor = ramp(12, dtype).reshape(3, 4).to(device)
        dist.all_reduce(tensor, op=op, group=group)
        out.append(tensor)
    return out


def all_reduce_coalesced(device: str, group: Any, dtype: torch.dtype) -> list[torch.Tensor]:
    """two tensors in one call"""
    tensors = [ramp(5, dtype).to(device), ramp(8, dtype, start=2).to(device)]
    dist.all_reduce_coalesced(tensors, group=group)
    return tensors


def broadcast(device: str, group: Any, dtype: torch.dtype) -> list[torch.Tensor]:
    """from the last rank; the others hold something else"""
    tensor = ramp(9, dtype).to(device)
    dist.broadcast(tensor, src=WORLD - 1, group=group)
    return [tensor]


def reduce(device: str, group: Any, dtype: torch.dtype) -> list[torch.Tensor]:
    """to rank 1; only the root's result is defined"""
    tensor = ramp(9, dtype).to(device)
    dist.reduce(tensor, dst=1, group=group)
    return [tensor] if RANK == 1 else []


def all_gather(device: str, group: Any, dtype: torch.dtype) -> list[torch.Tensor]:
    """list form"""
    outputs = [torch.zeros(2, 3, dtype=dtype, device=device) for _ in range(WORLD)]
    dist.all_gather(outputs, ramp(6, dtype).reshape(2, 3).to(device), group=group)
    return outputs


def all_gather_into_tensor(device: str, group: Any, dtype: torch.dtype) -> list[torch.Tensor]:
    """flat form"""
    output = torch.zeros(WORLD * 6, dtype=dtype, device=device)
    dist.all_gather_into_tensor(output, ramp(6, dtype).to(device), group=group)
    return [output]


def reduce_scatter(device: str, group: Any, dtype: torch.dtype) -> list[torch.Tensor]:
    """list form"""
    inputs = [ramp(4, dtype, start=i).to(device) for i in range(WORLD)]
    output = torch.zeros(4, dtype=dtype, device=device)
    dist.reduce_scatter(output, inputs, group=group)
    return [output]


def reduce_scatter_tensor(device: str, group: Any, dtype: torch.dtype) -> list[torch.Tensor]:
    """flat form"""
    output = torch.zeros(3, dtype=dtype, device=device)
    dist.reduce_scatter_tensor(output, ramp(3 * WORLD, dtype).to(device), group=group)
    return [output]


def all_to_all_single(device: str, group: Any, dtype: torch.dtype) -> list[torch.Tensor]:
    """even"""
    output = torch.zeros(2 * WORLD, 2, dtype=dtype, device=device)
    dist.all_to_all_single(output, ramp(4 * WORLD, dtype).reshape(-1, 2).to(device), group=group)
    return [output]


def all_to_all_uneven(device: str, group: Any, dtype: torch.dtype) -> list[torch.Tensor]:
    """rank i sends i + j rows to j"""
    send = [RANK + j for j in range(WORLD)]
    tensor = ramp(2 * sum(send), dtype).reshape(-1, 2).to(device)
    output = torch.zeros(sum(send), 2, dtype=dtype, device=device)
    dist.all_to_all_single(output, tensor, output_split_sizes=send, input_split_sizes=send, group=group)
    return [output]


def gather(device: str, group: Any, dtype: torch.dtype) -> list[torch.Tensor]:
    """to rank 0"""
    outputs = [torch.zeros(3, dtype=dtype, device=device) for _ in range(WORLD)] if RANK == 0 else None
    dist.gather(ramp(3, dtype).to(device), outputs, dst=0, group=group)
    return outputs or []


def scatter(device: str, group: Any, dtype: torch.dtype) -> list[torch.Tensor]:
    """from rank 1"""
    inputs = [ramp(3, dtype, start=i).to(device) for i in range(WORLD)] if RANK == 1 else None
    output = torch.zeros(3, dtype=dtype, device=device)
    dist.scatter(output, inputs, src=1, group=group)
    return [output]


def ring(device: str, group: Any, dtype: torch.dtype) -> list[torch.Tensor]:
    """batch_isend_irecv to the right"""
    received = torch.zeros(4, dtype=dtype, device=device)
    works = dist.batch_isend_irecv(
        [
            dist.P2POp(dist.isend, ramp(4, dtype).to(device), (RANK + 1) % WORLD, group),
            dist.P2POp(dist.irecv, received, (RANK - 1) % WORLD, group),
        ]
    )
    for work in works:
        work.wait()
    return [received]


def send_recv(device: str, group: Any, dtype: torch.dtype) -> list[torch.Tensor]:
    """unbatched, rank 0 to rank 1"""
    tensor = ramp(4, dtype).to(device)
    if RANK == 0:
        dist.send(tensor, 1, group=group)
    elif RANK == 1:
        dist.recv(tensor, 0, group=group)
    return [tensor]


CASES: list[Case] = [
    all_reduce, all_reduce_coalesced, broadcast, reduce, all_gather, all_gather_into_tensor, reduce_scatter,
    reduce_scatter_tensor, all_to_all_single, all_to_all_uneven, gather, scatter, ring, send_recv,
]  # fmt: skip
DTYPES = [torch.int32, torch.int64, torch.uint8, torch.float32, torch.float64, torch.float16, torch.bfloat16]
BOOL_CASES = [all_reduce, broadcast, all_gather, all_to_all_single, gather, scatter, ring]


def check_only_nccl(group: Any) -> None:
    """What Gloo does not have: judged by arithmetic."""
    total = sum(ramp(4, torch.float64, rank=r) for r in range(WORLD))
    average = ramp(4, torch.float32).cuda()
    dist.all_reduce(average, op=dist.ReduceOp.AVG, group=group)
    assert torch.allclose(average.cpu().double(), total / WORLD)
    scaled = ramp(4, torch.float32).cuda()
    dist.all_reduce(scaled, op=dist._make_nccl_premul_sum(0.5), group=group)
    assert torch.allclose(scaled.cpu().double(), total * 0.5)
    uneven = [torch.zeros(r + 1, dtype=torch.int64, device="cuda") for r in range(WORLD)]
    dist.all_gather(uneven, ramp(RANK + 1, torch.int64).cuda(), group=group)
    for r, part in enumerate(uneven):
        assert part.cpu().equal(ramp(r + 1, torch.int64, rank=r)), (r, part)
    inputs = [ramp(r + 1, torch.int64, start=r).cuda() for r in range(WORLD)]
    output = torch.zeros(RANK + 1, dtype=torch.int64, device="cuda")
    dist.reduce_scatter(output, inputs, group=group)
    wanted = sum(ramp(RANK + 1, torch.int64, rank=r, start=RANK) for r in range(WORLD))
    assert output.cpu().equal(wanted), (output, wanted)
    outputs = [torch.zeros(WORLD * 2, dtype=torch.int64, device="cuda") for _ in range(3)]
    with dist._coalescing_manager(group=group, device=torch.device("cuda", torch.cuda.current_device())):
        for i, out in enumerate(outputs):
            dist.all_gather_into_tensor(out, ramp(2, torch.int64, start=i).cuda(), group=group)
    for i, out in enumerate(outputs):
        assert out.cpu().equal(torch.cat([ramp(2, torch.int64, rank=r, start=i) for r in range(WORLD)]))


def check_pending(group: Any) -> None:
    """A collective on the result of another one, without a host read in between."""
    tensor = torch.full((3,), RANK + 1, dtype=torch.int64, device="cuda")
    dist.all_reduce(tensor, group=group)
    tensor += 1
    tensor *= RANK + 1
    dist.all_reduce(tensor, group=group)
    first = WORLD * (WORLD + 1) // 2 + 1
    assert tensor.tolist() == [first * WORLD * (WORLD + 1) // 2] * 3, tensor.tolist()


def check_objects(group: Any) -> None:
    """Pickled objects over the device."""
    gathered: list[Any] = [None] * WORLD
    dist.all_gather_object(gathered, {"rank": RANK, "text": "x" * (10 * RANK)}, group=group)
    assert [g["rank"] for g in gathered] == list(range(WORLD))
    objects = [{"a": 1}, "b", 3.5] if RANK == 0 else [None, None, None]
    dist.broadcast_object_list(objects, src=0, group=group)
    assert objects == [{"a": 1}, "b", 3.5]


def check_unknown(group: Any) -> None:
    """Without values the shapes and the timing go on."""
    tensor = torch.randn(1 << 20, device="cuda")
    before = torch.cuda.Event(enable_timing=True)
    after = torch.cuda.Event(enable_timing=True)
    before.record()
    dist.all_reduce(tensor, group=group)
    after.record()
    torch.cuda.synchronize()
    assert before.elapsed_time(after) > 0.001


def main() -> int:
    """Runs all cases; returns the exit status."""
    global RANK, WORLD
    dist.init_process_group("cpu:gloo,cuda:nccl")
    RANK, WORLD = dist.get_rank(), dist.get_world_size()
    torch.cuda.set_device(RANK % torch.cuda.device_count())
    assert dist.is_nccl_available()
    nccl = dist.new_group(backend="nccl")
    gloo = dist.new_group(backend="gloo")
    assert dist.get_backend(nccl) == "nccl"
    failures = 0
    for case in CASES:
        for dtype in DTYPES + ([torch.bool] if case in BOOL_CASES else []):
            wanted = case("cpu", gloo, dtype)
            given = [t.cpu() for t in case("cuda", nccl, dtype)]
            same = len(wanted) == len(given) and all(
                w.dtype == g.dtype and w.shape == g.shape and torch.equal(w, g) for w, g in zip(wanted, given)
            )
            if not same:
                failures += 1
                print(f"rank {RANK}: {case.__name__} {dtype}: gloo {wanted}, simulated {given}", flush=True)
    for check in (check_only_nccl, check_pending, check_objects, check_unknown):
        check(nccl)
    dist.barrier()
    if RANK == 0:
        print(f"{len(CASES)} operations, {failures} failures", flush=True)
    dist.destroy_process_group()
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
