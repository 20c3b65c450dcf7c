"""Hand-written @triton.jit kernels take the same path as Inductor's."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import triton
import triton.language as tl

from .attached import attach, device_ms

EXTENSION, LAUNCHES = attach()


@triton.jit
def scaled_copy(source, target, n, factor, BLOCK: tl.constexpr):
    where = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = where < n
    tl.store(target + where, tl.load(source + where, mask=mask) * factor, mask=mask)


@triton.autotune(
    configs=[triton.Config({"BLOCK": size}, num_warps=warps) for size in (64, 4096) for warps in (2, 8)],
    key=["n"],
)
@triton.jit
def tuned_copy(source, target, n, BLOCK: tl.constexpr):
    where = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(target + where, tl.load(source + where, mask=where < n), mask=where < n)


@triton.jit
def rows_counted(counts, data, out, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    total = tl.zeros((BLOCK,), tl.float32)
    for i in range(tl.load(counts + row)):
        total += tl.load(data + i * BLOCK + tl.arange(0, BLOCK))
    tl.store(out + row * BLOCK + tl.arange(0, BLOCK), total)


def facts(name: str) -> dict[str, Any]:
    return LAUNCHES.requests[f"triton::{name}"]["sm"]


def test_a_launch_is_priced_and_its_target_becomes_unknown() -> None:
    source, target = torch.ones(1 << 22, device="cuda"), torch.zeros(1 << 22, device="cuda")
    assert EXTENSION.has_value(target)
    scaled_copy[(triton.cdiv(1 << 22, 1024),)](source, target, 1 << 22, 2.0, BLOCK=1024)
    assert not EXTENSION.has_value(target)
    assert EXTENSION.has_value(source)
    assert facts("scaled_copy")["read_bytes"] == source.nbytes
    assert facts("scaled_copy")["written_bytes"] == target.nbytes
    assert facts("scaled_copy")["grid"] == [4096, 1, 1]


def test_a_launch_goes_on_the_current_stream() -> None:
    source, target = torch.ones(1 << 24, device="cuda"), torch.zeros(1 << 24, device="cuda")
    side = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        scaled_copy[(1 << 14,)](source, target, 1 << 24, 2.0, BLOCK=1024)
    assert torch.cuda.current_stream().query()
    assert not side.query()
    side.synchronize()


def test_a_masked_launch_counts_what_is_left_on() -> None:
    source, target = torch.ones(1000, device="cuda"), torch.zeros(1000, device="cuda")
    scaled_copy[(1,)](source, target, 1000, 3.0, BLOCK=1024)
    assert facts("scaled_copy")["written_bytes"] == 4000


def test_autotune_takes_what_the_cost_model_finds_fastest() -> None:
    source, target = torch.ones(1 << 24, device="cuda"), torch.zeros(1 << 24, device="cuda")
    grid = lambda meta: (triton.cdiv(1 << 24, meta["BLOCK"]),)  # noqa: E731
    tuned_copy[grid](source, target, 1 << 24)
    assert tuned_copy.best_config.kwargs["BLOCK"] == 4096
    timings = tuned_copy.configs_timings
    assert len(timings) == 4
    assert min(timings.values()) == timings[tuned_copy.best_config]
    steady_ms = device_ms(lambda: tuned_copy[grid](source, target, 1 << 24))
    tuned = timings[tuned_copy.best_config]
    tuned_ms = tuned[0] if isinstance(tuned, (list, tuple)) else tuned
    assert steady_ms == pytest.approx(tuned_ms, rel=0.2)


def test_loops_as_long_as_a_tensor_says_follow_its_values() -> None:
    data, out = torch.ones(64, 1024, device="cuda"), torch.zeros(8, 1024, device="cuda")
    rows_counted[(8,)](torch.full((8,), 4, device="cuda", dtype=torch.int32), data, out, BLOCK=1024)
    assert facts("rows_counted")["l2_bytes"] >= 8 * (4 + 1) * 4096
    few = facts("rows_counted")["l2_bytes"]
    counts = torch.tensor(range(0, 64, 8), device="cuda", dtype=torch.int32)
    rows_counted[(8,)](counts, data, out, BLOCK=1024)
    assert facts("rows_counted")["l2_bytes"] - few == pytest.approx(8 * (28 - 4) * 4096, rel=0.01)


def test_loops_that_nothing_tells_are_unpriced_not_guessed() -> None:
    counts = torch.compile(lambda t: t * 1)(torch.ones(8, device="cuda", dtype=torch.int32))
    assert not EXTENSION.has_value(counts)
    data, out = torch.ones(64, 512, device="cuda"), torch.zeros(8, 512, device="cuda")
    rows_counted[(8,)](counts, data, out, BLOCK=512)
    assert facts("rows_counted")["unknown_loops"] > 0


def test_a_cpu_tensor_is_refused_as_on_a_gpu() -> None:
    with pytest.raises(ValueError, match="cpu tensor"):
        scaled_copy[(1,)](torch.ones(8), torch.zeros(8, device="cuda"), 8, 1.0, BLOCK=64)


def test_more_shared_memory_than_the_gpu_has_is_refused() -> None:
    from triton.runtime.errors import OutOfResources

    @triton.jit
    def product(a, b, c, n, SIZE: tl.constexpr, PART: tl.constexpr):
        i, k = tl.arange(0, SIZE), tl.arange(0, PART)
        total = tl.zeros((SIZE, SIZE), tl.float32)
        for _ in range(0, n, PART):
            left, right = tl.load(a + i[:, None] * n + k[None, :]), tl.load(b + k[:, None] * n + i[None, :])
            total = tl.dot(left, right, total)
            k += PART
        tl.store(c + i[:, None] * n + i[None, :], total.to(tl.float16))

    a = torch.zeros(512, 512, device="cuda", dtype=torch.float16)
    with pytest.raises(OutOfResources):
        product[(1,)](a, a, a.clone(), 512, SIZE=128, PART=64, num_warps=8, num_stages=12)
