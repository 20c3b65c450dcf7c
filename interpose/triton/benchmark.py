"""Autotuners are answered by the cost model: a candidate's time is the sum of its kernels' costs.

The candidate runs once, off the clock: its kernels are priced but put on no stream, and take no host time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from interpose.extension_protocol import Extension

PS_PER_MS = 1_000_000_000


def time_off_clock_ms(extension: Extension, call: Callable[[], Any]) -> float:
    """Milliseconds of device time that `call` would take. What `call` raises is passed on."""
    before_ps = extension.off_clock_begin()
    total_ps = before_ps
    try:
        call()
    finally:
        total_ps = extension.off_clock_end(before_ps)
    return float(total_ps) / PS_PER_MS


def inductor_benchmarker(extension: Extension, base: type) -> Any:
    """An instance of a subclass of `base` (torch._inductor.runtime.benchmarking.TritonBenchmarker)."""

    class PhantomBenchmarker(base):  # type: ignore[misc, valid-type]
        """Benchmarks GPU callables by the cost model."""

        def benchmark_gpu(
            self, _callable: Callable[[], Any], *args: Any, return_mode: str = "min", **kwargs: Any
        ) -> Any:
            """Median, minimum and mean are the same; in milliseconds."""
            quantiles = kwargs.get("quantiles")
            time_ms = time_off_clock_ms(extension, _callable)
            if quantiles is not None:
                return [time_ms] * len(quantiles)
            return [time_ms] if return_mode == "all" else time_ms

        def benchmark_gpu_with_cuda_graph(
            self, _callable: Callable[[], Any], *args: Any, **kwargs: Any
        ) -> float:
            """As benchmark_gpu: launches cost no host time there."""
            return time_off_clock_ms(extension, _callable)

    return PhantomBenchmarker()
