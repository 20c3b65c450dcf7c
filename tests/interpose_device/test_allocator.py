"""The caching allocator's policy: sequences worked out by hand from PyTorch's notes on memory management.

Requests are rounded to 512 bytes. Up to 1 MiB they share 2 MiB segments; below 10 MiB they are cut from
20 MiB segments; from 10 MiB on a segment is the request rounded to 2 MiB.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest
import torch

KIB, MIB = 1 << 10, 1 << 20


def take(size: int, device: str = "cuda:0") -> torch.UntypedStorage:
    return torch.UntypedStorage(size, device=device)


def held(device: int = 0) -> tuple[int, int]:
    return torch.cuda.memory_allocated(device), torch.cuda.memory_reserved(device)


def stat(name: str) -> Any:
    return torch.cuda.memory_stats()[name]


@pytest.mark.parametrize(
    ("size", "allocated", "reserved"),
    [
        (1, 512, 2 * MIB),
        (512, 512, 2 * MIB),
        (513, 1024, 2 * MIB),
        (MIB, MIB, 2 * MIB),
        (MIB + 1, MIB + 512, 20 * MIB),
        (10 * MIB - 512, 10 * MIB - 512, 20 * MIB),
        (10 * MIB, 10 * MIB, 10 * MIB),
        (10 * MIB + 1, 10 * MIB + 512, 12 * MIB),
        (33 * MIB, 34 * MIB, 34 * MIB),
    ],
)
def test_one_request(device: ModuleType, size: int, allocated: int, reserved: int) -> None:
    storage = take(size)
    assert held() == (allocated, reserved)
    assert stat("requested_bytes.all.current") == size
    del storage
    assert held() == (0, reserved)
    torch.cuda.empty_cache()
    assert held() == (0, 0)


def test_small_requests_share_a_segment(device: ModuleType) -> None:
    kept = [take(512 * KIB) for _ in range(4)]
    assert held() == (2 * MIB, 2 * MIB)
    kept.append(take(1))
    assert held() == (2 * MIB + 512, 4 * MIB)
    assert stat("segment.small_pool.current") == 2


def test_best_fit_takes_the_smallest_block_that_is_large_enough(device: ModuleType) -> None:
    # Three segments of 12, 14 and 16 MiB become free; 13 MiB must come out of the one with 14.
    a, b, c = take(12 * MIB), take(14 * MIB), take(16 * MIB)
    address = b.data_ptr()
    del a, b, c
    assert held() == (0, 42 * MIB)
    d = take(13 * MIB)
    assert d.data_ptr() == address
    assert held()[1] == 42 * MIB
    # What is left of a large block is split off only above 1 MiB: here exactly 1 MiB is not.
    assert held()[0] == 14 * MIB


def test_a_large_block_is_split_when_more_than_one_mib_is_left(device: ModuleType) -> None:
    a = take(64 * MIB)
    del a
    b = take(40 * MIB)
    assert held() == (40 * MIB, 64 * MIB)
    assert stat("inactive_split_bytes.large_pool.current") == 24 * MIB
    c = take(24 * MIB)
    assert held() == (64 * MIB, 64 * MIB)
    assert stat("inactive_split.all.current") == 0
    del b, c


def test_neighbours_merge_when_freed(device: ModuleType) -> None:
    a, b, c = take(4 * MIB), take(4 * MIB), take(4 * MIB)
    assert held() == (12 * MIB, 20 * MIB)
    assert b.data_ptr() == a.data_ptr() + 4 * MIB
    del a, c
    # c merged with the 8 MiB behind it; a stands alone: 4 + 12 MiB
    assert stat("inactive_split.large_pool.current") == 2
    assert stat("inactive_split_bytes.large_pool.current") == 16 * MIB
    del b
    assert stat("inactive_split.large_pool.current") == 0
    d = take(9 * MIB)
    assert held() == (9 * MIB, 20 * MIB)
    del d


def test_a_split_segment_is_not_returned(device: ModuleType) -> None:
    a, b = take(4 * MIB), take(4 * MIB)
    del a
    torch.cuda.empty_cache()
    assert held() == (4 * MIB, 20 * MIB)
    del b
    torch.cuda.empty_cache()
    assert held() == (0, 0)


def test_blocks_belong_to_the_stream_they_were_allocated_on(device: ModuleType) -> None:
    a = take(16 * MIB)
    address = a.data_ptr()
    del a
    with torch.cuda.stream(torch.cuda.Stream()):
        b = take(16 * MIB)
    assert b.data_ptr() != address
    assert held() == (16 * MIB, 32 * MIB)
    c = take(16 * MIB)
    assert c.data_ptr() == address


def test_peaks_and_totals(device: ModuleType) -> None:
    a = take(20 * MIB)
    del a
    b = take(4 * MIB)
    assert torch.cuda.max_memory_allocated() == 20 * MIB
    assert stat("allocated_bytes.all.allocated") == 24 * MIB
    assert stat("allocated_bytes.all.freed") == 20 * MIB
    assert stat("allocation.all.allocated") == 2
    torch.cuda.reset_peak_memory_stats()
    assert torch.cuda.max_memory_allocated() == 4 * MIB
    assert torch.cuda.max_memory_reserved() == 20 * MIB
    torch.cuda.reset_accumulated_memory_stats()
    assert stat("allocated_bytes.all.allocated") == 0
    del b


def test_devices_are_apart(device: ModuleType) -> None:
    a = take(16 * MIB, "cuda:3")
    assert held(3) == (16 * MIB, 16 * MIB)
    assert held(0) == (0, 0)
    assert a.device == torch.device("cuda", 3)
    with pytest.raises(RuntimeError, match="nvalid"):
        take(1, "cuda:8")


def test_free_and_total(device: ModuleType) -> None:
    free, total = torch.cuda.mem_get_info()
    assert total == 80 << 30
    assert free == 79 << 30
    a = take(16 * MIB)
    assert torch.cuda.mem_get_info() == (free - 16 * MIB, total)
    del a


def test_out_of_memory_names_the_figures(device: ModuleType) -> None:
    a = take(78 << 30)
    with pytest.raises(torch.OutOfMemoryError) as caught:
        take(2 << 30)
    text = str(caught.value)
    assert text.startswith(
        "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 80.00 GiB of which "
        "1024.00 MiB is free. "
    )
    assert (
        "Of the allocated memory 78.00 GiB is allocated by PyTorch, and 0 bytes is reserved by PyTorch"
        in text
    )
    assert stat("num_ooms") == 1
    assert stat("num_alloc_retries") == 1
    b = take(1 << 30)
    del a, b


def test_cached_blocks_are_returned_before_giving_up(device: ModuleType) -> None:
    a = take(60 << 30)
    del a
    assert held() == (0, 60 << 30)
    b = take(70 << 30)
    assert held() == (70 << 30, 70 << 30)
    assert stat("num_alloc_retries") == 1
    assert stat("num_ooms") == 0
    del b


def test_fraction_of_the_memory(device: ModuleType) -> None:
    torch.cuda.set_per_process_memory_fraction(0.5)
    try:
        with pytest.raises(torch.OutOfMemoryError, match=r"40.00 GiB allowed; "):
            take(41 << 30)
        a = take(39 << 30)
        assert torch.cuda.get_per_process_memory_fraction() == 0.5
        del a
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)


def test_out_of_memory_observer(device: ModuleType) -> None:
    seen: list[tuple[int, int, int, int]] = []
    torch._C._cuda_attach_out_of_memory_observer(lambda *args: seen.append(args))
    with pytest.raises(torch.OutOfMemoryError):
        take(100 << 30)
    assert seen == [(0, 100 << 30, 80 << 30, 79 << 30)]


def test_snapshot(device: ModuleType) -> None:
    a = take(4 * MIB)
    (segment,) = torch.cuda.memory_snapshot()
    assert segment["total_size"] == 20 * MIB
    assert segment["allocated_size"] == segment["active_size"] == 4 * MIB
    assert segment["segment_type"] == "large"
    assert segment["address"] == a.data_ptr()
    assert [(b["size"], b["state"]) for b in segment["blocks"]] == [
        (4 * MIB, "active_allocated"),
        (16 * MIB, "inactive"),
    ]


def test_history(device: ModuleType) -> None:
    torch.cuda.memory._record_memory_history(max_entries=10)
    a = take(4 * MIB)
    address = a.data_ptr()
    del a
    trace = torch.cuda.memory._snapshot()["device_traces"][0]
    torch.cuda.memory._record_memory_history(enabled=None)
    assert [t["action"] for t in trace] == ["segment_alloc", "alloc", "free_requested", "free_completed"]
    assert all(t["addr"] == address for t in trace)


def test_summary_runs(device: ModuleType) -> None:
    assert "PyTorch CUDA memory summary" in torch.cuda.memory_summary()


def test_raw_allocations(device: ModuleType) -> None:
    address = torch.cuda.caching_allocator_alloc(3 * MIB)
    assert held() == (3 * MIB, 20 * MIB)
    torch.cuda.caching_allocator_delete(address)
    assert held() == (0, 20 * MIB)


def test_cublas_workspace(device: ModuleType) -> None:
    device.ensure_cublas_workspace(0)
    device.ensure_cublas_workspace(0)
    assert held() == (32 * MIB, 32 * MIB)  # Hopper
    torch._C._cuda_clearCublasWorkspaces()
    assert held()[0] == 0


def test_scratch_counts_towards_the_peak_only(device: ModuleType) -> None:
    device.touch_scratch(0, 16 * MIB)
    assert held() == (0, 16 * MIB)
    assert torch.cuda.max_memory_allocated() == 16 * MIB


def test_pool_of_its_own(device: ModuleType) -> None:
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        a = take(4 * MIB)
    b = take(4 * MIB)
    assert held() == (8 * MIB, 40 * MIB)
    (segment,) = pool.snapshot()
    assert segment["segment_pool_id"] == pool.id
    assert segment["address"] == a.data_ptr()
    assert pool.use_count() == 1
    del a, b, pool, segment
    assert held() == (0, 20 * MIB)


def test_resize_of_a_storage(device: ModuleType) -> None:
    a = take(12 * MIB)
    a.resize_(0)
    assert a.nbytes() == 0
    assert held() == (0, 12 * MIB)
    a.resize_(12 * MIB)
    assert held() == (12 * MIB, 12 * MIB)


def test_empty_request_takes_nothing(device: ModuleType) -> None:
    a = take(0)
    assert a.nbytes() == 0
    assert held() == (0, 0)
