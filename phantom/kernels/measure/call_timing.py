"""Times a prepared call: on the CPU by the thread's or the wall clock, on CUDA by events."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from phantom.kernels.measure.operator_inputs import CannotMeasure

MIN_REPETITIONS = 5
MAX_REPETITIONS = 100
WARMUP = 2
_BATCH_TARGET_S = 20e-6
_FLOOR_S = 50e-9
CPU_WARM_BYTES = 256 << 10
"""Operands up to this size stay in a core's own cache between two uses."""
CPU_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
_UNIT_BITS = {"K": 10, "M": 20, "G": 30}
CPU_CACHE_UNKNOWN_BYTES = 32 << 20
"""Taken for the last-level cache where the system does not tell (containers, other systems than Linux)."""
CPU_CACHE_LIMIT_BYTES = 128 << 20
"""No more than this is written before a run, so that a measurement ends in a second."""


@dataclass(frozen=True)
class Timing:
    """Median and distance between the quartiles in seconds, repetitions and warm-up runs."""

    median_s: float
    spread_s: float
    repetitions: int
    warmup: int


def _summary(samples: list[float]) -> Timing:
    ordered = sorted(samples)
    quarter = len(ordered) // 4
    spread = ordered[-1 - quarter] - ordered[quarter]
    return Timing(max(statistics.median(ordered), _FLOOR_S), spread, len(ordered), WARMUP)


def time_cpu(call: Callable[[], Any], *, budget_s: float, dispatch_s: float, flush_bytes: int = 0) -> Timing:
    """Time *call* until *budget_s* is spent (at least 5, at most 100 repetitions), less *dispatch_s* each.

    With one thread the clock is that thread's CPU time, which is the wall clock of an undisturbed run
    whatever else the
    machine does; with more it is the wall clock.  Calls shorter than 20 us are timed in batches, so that
    the clock's own
    cost does not count.  *flush_bytes* > 0: so much memory is written before each run, since in a job other
    tensors pass
    through the caches between two uses of operands that fill them.
    """
    flush = torch.empty(flush_bytes, dtype=torch.uint8) if flush_bytes else None
    clock = time.thread_time_ns if torch.get_num_threads() == 1 else time.perf_counter_ns
    start = clock()
    for _ in range(WARMUP):
        call()
    once = (clock() - start) * 1e-9 / WARMUP
    batch = 1 if flush_bytes else max(1, min(50, int(_BATCH_TARGET_S / max(once, 1e-7))))
    samples: list[float] = []
    deadline = time.perf_counter() + budget_s
    while len(samples) < MAX_REPETITIONS and (
        len(samples) < MIN_REPETITIONS or time.perf_counter() < deadline
    ):
        if flush is not None:
            flush.fill_(len(samples) % 7)
        begin = clock()
        for _ in range(batch):
            call()
        samples.append((clock() - begin) * 1e-9 / batch - dispatch_s)
    return _summary(samples)


def cpu_cache_bytes(caches: Path = CPU_CACHES) -> int:
    """Size of the largest cache that the CPU has, in bytes.

    What a step of training touches (parameters, gradients, optimizer states, activations) is larger as a
    rule, so that an operand larger than a core's own cache is gone from this one when it is used again.
    """
    sizes = []
    for path in caches.glob("index*/size"):
        size = path.read_text().strip()
        if size[:-1].isdigit() and size[-1] in _UNIT_BITS:
            sizes.append(int(size[:-1]) << _UNIT_BITS[size[-1]])
    return min(max(sizes, default=CPU_CACHE_UNKNOWN_BYTES), CPU_CACHE_LIMIT_BYTES)


def dispatch_cost_s() -> float:
    """Return what calling an operator that does nothing costs (the host's part: the job's clock has it)."""
    tensor = torch.zeros(1)
    operator = torch.ops.aten.alias.default

    def call() -> None:
        operator(tensor)

    return min(time_cpu(call, budget_s=0.02, dispatch_s=0.0).median_s for _ in range(3))


def time_cuda(call: Callable[[], Any], *, budget_s: float, flush_bytes: int) -> Timing:
    """Time *call* by events.  *flush_bytes* > 0: the L2 cache is overwritten before each run (operands too
    large to stay in it).

    A short busy kernel runs ahead of each measured call, so that the launch itself is not part of the time.
    """
    flush = torch.empty(flush_bytes, dtype=torch.uint8, device="cuda") if flush_bytes else None
    for _ in range(WARMUP):
        call()
    torch.cuda.synchronize()
    samples: list[float] = []
    deadline = time.perf_counter() + budget_s
    while len(samples) < MAX_REPETITIONS and (
        len(samples) < MIN_REPETITIONS or time.perf_counter() < deadline
    ):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        if flush is not None:
            flush.zero_()
        torch.cuda._sleep(100_000)
        start.record()
        call()
        end.record()
        end.synchronize()
        samples.append(start.elapsed_time(end) * 1e-3)
    return _summary(samples)


def check_memory(needed: int, device: str, limit_bytes: int | None) -> None:
    """Raise CannotMeasure if *needed* bytes are more than *limit_bytes* or than 60 % of what is free."""
    if device.startswith("cuda"):
        free = torch.cuda.mem_get_info(torch.device(device))[0]
    else:
        free = _free_host_bytes()
    allowed = int(0.6 * free) if limit_bytes is None else min(limit_bytes, int(0.6 * free))
    if needed > allowed:
        raise CannotMeasure(f"needs {needed / 2**30:.1f} GiB, {allowed / 2**30:.1f} GiB are allowed")


def _free_host_bytes() -> int:
    try:
        with open("/proc/meminfo", encoding="utf-8") as lines:
            for line in lines:
                if line.startswith("MemAvailable"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass
    return 4 << 30
