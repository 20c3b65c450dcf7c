"""A job of four ranks that checks stream rules, groups, futures, functional collectives and error texts."""

from __future__ import annotations

import copy
import os
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from torch.distributed.device_mesh import init_device_mesh

BIG = 64 << 20  # elements of a buffer whose all_reduce takes well over a millisecond


def big() -> torch.Tensor:
    """A buffer without a value."""
    return torch.empty(BIG, dtype=torch.float32, device="cuda")


def elapsed_ms(run: Callable[[], Any], stream: torch.cuda.Stream) -> float:
    """Virtual time that `run` takes on `stream`, seen by events there."""
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record(stream)
    run()
    end.record(stream)
    torch.cuda.synchronize()
    return start.elapsed_time(end)


def check_sync_runs_on_the_current_stream() -> None:
    """async_op=False: on the current stream, the default stream does not wait and neither does the host."""
    buffer, side = big(), torch.cuda.Stream()
    default = torch.cuda.current_stream()
    dist.barrier()

    def run() -> None:
        with torch.cuda.stream(side):
            dist.all_reduce(buffer)

    assert elapsed_ms(run, side) > 0.5
    dist.barrier()
    assert elapsed_ms(run, default) < 0.2
    dist.barrier()
    before = time.perf_counter()
    run()
    assert time.perf_counter() - before < 0.3e-3
    torch.cuda.synchronize()
    assert time.perf_counter() - before > 0.5e-3


def check_async_runs_beside() -> None:
    """async_op=True: on the group's stream; wait() orders the current stream, not the host."""
    buffer = big()
    default = torch.cuda.current_stream()
    works: list[Any] = []
    dist.barrier()
    assert elapsed_ms(lambda: works.append(dist.all_reduce(buffer, async_op=True)), default) < 0.2
    works[0].wait()
    dist.barrier()

    def run_and_wait() -> None:
        work = dist.all_reduce(buffer, async_op=True)
        assert not work.is_completed()
        before = time.perf_counter()
        work.wait()
        assert time.perf_counter() - before < 0.2e-3
        works.append(work)

    assert elapsed_ms(run_and_wait, default) > 0.5
    assert works[-1].is_completed()
    first = dist.all_reduce(buffer, async_op=True)
    second = dist.all_reduce(torch.ones(1, device="cuda"), async_op=True)
    assert not second.is_completed()  # one stream per group: in order
    torch.cuda.synchronize()
    assert first.is_completed()
    assert second.is_completed()


def check_futures(rank: int, world: int) -> None:
    """Callbacks see the result, on a stream that is ordered after the collective."""
    tensor = torch.full((3,), rank + 1, dtype=torch.int64, device="cuda")
    work = dist.all_reduce(tensor, async_op=True)
    doubled = work.get_future().then(lambda done: done.value()[0] * 2)
    assert doubled.wait().tolist() == [world * (world + 1)] * 3
    buffer = big()
    dist.barrier()
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()

    def then(done: Any) -> torch.Tensor:
        end.record(torch.cuda.current_stream())
        return done.value()[0]

    dist.all_reduce(buffer, async_op=True).get_future().then(then).wait()
    torch.cuda.synchronize()
    assert start.elapsed_time(end) > 0.5


def check_barriers(rank: int, gloo: Any) -> None:
    """Nobody leaves a barrier before the last one has come, in virtual time."""
    for group in (None, gloo):
        time.sleep(0.01 * (rank + 1))
        came = time.time()
        dist.barrier(group=group)
        left = time.time()
        times: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(times, (came, left), group=gloo)
        assert min(t[1] for t in times) >= max(t[0] for t in times), times
    came = time.time()
    if rank == 0:
        time.sleep(0.05)
        came = time.time()
    sent = torch.tensor([came], dtype=torch.float64)
    dist.broadcast(sent, src=0, group=gloo)  # a value cannot arrive before it was sent
    assert time.time() >= sent.item()
    dist.monitored_barrier(gloo)
    if rank == 2:
        time.sleep(0.05)
        dist.send(torch.tensor([time.time()], dtype=torch.float64), 1, group=gloo)
    if rank == 1:
        dist.recv(sent, 2, group=gloo)
        assert time.time() >= sent.item()


def check_groups(rank: int, world: int) -> None:
    """new_group, split_group, meshes, subgroups, options."""
    options = dist.ProcessGroupNCCL.Options(is_high_priority_stream=True)
    options.config.min_ctas = 2
    assert copy.deepcopy(options).config.min_ctas == 2
    some = dist.new_group([0, 2], pg_options=options, timeout=timedelta(seconds=90))
    if rank in (0, 2):
        tensor = torch.tensor([rank + 1], device="cuda")
        dist.all_reduce(tensor, group=some)
        assert tensor.item() == 4
        assert dist.get_process_group_ranks(some) == [0, 2]
    mesh = init_device_mesh("cuda", (2, world // 2), mesh_dim_names=("dp", "tp"))
    tensor = torch.tensor([rank], device="cuda")
    dist.all_reduce(tensor, group=mesh["tp"].get_group())
    assert tensor.item() == (1 if rank < 2 else 5)
    dist.all_reduce(tensor, group=mesh["dp"].get_group())
    assert tensor.item() == 6
    mine, _ = dist.new_subgroups(group_size=2)
    tensor = torch.tensor([1], device="cuda")
    dist.all_reduce(tensor, group=mine)
    assert tensor.item() == 2
    half = dist.split_group(split_ranks=[[0, 1], [2, 3]])
    assert half is not None
    assert half.size() == 2
    tensor = torch.tensor([rank], device="cuda")
    dist.all_reduce(tensor, group=half)
    assert tensor.item() == (1 if rank < 2 else 5)
    backend = dist.group.WORLD._get_backend(torch.device("cuda"))
    assert type(backend) is dist.ProcessGroupNCCL
    assert backend.supports_splitting
    assert backend.comm_split_count() >= 1
    assert backend._get_sequence_number_for_group() > 0
    backend.register_mem_pool(None)
    dist.distributed_c10d._set_pg_timeout(timedelta(seconds=100))
    assert backend.options._timeout == timedelta(seconds=100)


def check_functional(rank: int, world: int) -> None:
    """_c10d_functional with wait_tensor."""
    group = dist.group.WORLD
    assert group is not None
    tensor = torch.arange(4).cuda() + rank
    total = funcol.all_reduce(tensor, "sum", group)
    wanted = [world * i + world * (world - 1) // 2 for i in range(4)]
    assert funcol.wait_tensor(total).tolist() == wanted
    gathered = funcol.all_gather_tensor(tensor, gather_dim=0, group=group)
    assert gathered.tolist() == [i + r for r in range(world) for i in range(4)]
    scattered = funcol.reduce_scatter_tensor(tensor, "sum", scatter_dim=0, group=group)
    assert scattered.tolist() == [wanted[rank]]
    swapped = funcol.all_to_all_single(tensor, None, None, group=group)
    assert swapped.tolist() == [rank + r for r in range(world)]
    both = funcol.all_reduce_coalesced([tensor, tensor * 2], "sum", group)
    assert both[0].tolist() == wanted
    assert both[1].tolist() == [2 * w for w in wanted]


def raises(kind: type[BaseException], text: str, run: Callable[[], Any]) -> None:
    """`run` must raise `kind` with `text`."""
    try:
        run()
    except kind as error:
        if text not in str(error):
            raise AssertionError(f"{text!r} is not in {error}") from error
        return
    raise AssertionError(f"nothing raised: {text}")


def check_errors() -> None:
    """PyTorch's own texts."""
    square = torch.zeros(4, 4, device="cuda")
    raises(ValueError, "Tensors must be contiguous", lambda: dist.all_reduce(square.t()))
    raises(
        TypeError,
        "Input tensor data type is not supported for NCCL process group",
        lambda: dist.all_reduce(torch.zeros(2, dtype=torch.int16, device="cuda")),
    )
    ints = torch.zeros(2, dtype=torch.int32, device="cuda")
    raises(
        ValueError, "Cannot use ReduceOp.BAND with NCCL", lambda: dist.all_reduce(ints, op=dist.ReduceOp.BAND)
    )
    raises(
        ValueError,
        "output tensor size must be equal to world_size times input tensor size",
        lambda: dist.all_gather_into_tensor(square, square),
    )
    raises(
        ValueError,
        "input tensor must be the same size as output size times world size",
        lambda: dist.reduce_scatter_tensor(square, square),
    )
    raises(
        RuntimeError,
        "Split sizes doesn't match total dim 0 size",
        lambda: dist.all_to_all_single(square, square, [1, 1, 1, 2], [1, 1, 1, 1]),
    )


def main() -> None:
    """Runs every check on every rank."""
    dist.init_process_group("nccl", device_id=torch.device("cuda", int(os.environ["LOCAL_RANK"])))
    began_ns = time.time_ns()
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.cuda.set_device(rank)
    assert torch.cuda.nccl.version()[0] == 2
    gloo = dist.new_group(backend="gloo")
    assert isinstance(gloo._get_backend(torch.device("cpu")), dist.ProcessGroupGloo)
    check_sync_runs_on_the_current_stream()
    check_async_runs_beside()
    check_futures(rank, world)
    check_barriers(rank, gloo)
    check_groups(rank, world)
    check_functional(rank, world)
    check_errors()
    dist.barrier()
    print(f"rules hold on rank {rank} after {time.time_ns() - began_ns} ns", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
