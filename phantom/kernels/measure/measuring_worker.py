"""The process that runs kernels to measure them: a crash or a hang of an operator is not the simulator's.

Started by :mod:`phantom.kernels.measure.measurer`; reads requests from stdin and answers on stdout,
each a 4-byte length and msgpack.
"""

from __future__ import annotations

import ctypes
import itertools
import math
import os
import select
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any

from phantom.kernels.measure.message_framing import read_message, write_message

if TYPE_CHECKING:
    from phantom.kernels.measure.call_timing import Timing


@dataclass(frozen=True)
class Prepared:
    """A kernel that can be called, and the bytes of its operands."""

    call: Callable[[], object]
    needed_bytes: int


def prepare(request: dict[str, Any]) -> Prepared:
    """Make operands for the kernel of *request*.  Raises CannotMeasure, and whatever the kernel raises."""
    from phantom.kernels.measure.call_timing import check_memory
    from phantom.kernels.measure.cpu_form import cpu_form
    from phantom.kernels.measure.operator_inputs import make_arguments, needed_bytes, resolve
    from phantom.kernels.request.description import parse_kernel

    kernel = parse_kernel(request["kernel"])
    if request["device"] == "cpu":
        kernel = cpu_form(kernel)
    needed = needed_bytes(kernel)
    check_memory(2 * needed, request["device"], request.get("limit_bytes"))
    overload = resolve(kernel)
    args, keywords = make_arguments(kernel, overload._schema, request["device"])
    return Prepared(lambda: overload(*args, **keywords), needed)


def _time(prepared: Prepared, request: dict[str, Any], dispatch_s: float) -> Timing:
    import torch

    from phantom.kernels.measure.call_timing import CPU_WARM_BYTES, cpu_cache_bytes, time_cpu, time_cuda

    device, budget_s = request["device"], request["budget_s"]
    if device == "cpu":
        flush = cpu_cache_bytes() if prepared.needed_bytes > CPU_WARM_BYTES else 0
        return time_cpu(prepared.call, budget_s=budget_s, dispatch_s=dispatch_s, flush_bytes=flush)
    cache = torch.cuda.get_device_properties(torch.device(device)).L2_cache_size
    flush = 2 * cache if prepared.needed_bytes > cache // 4 else 0
    return time_cuda(prepared.call, budget_s=budget_s, flush_bytes=flush)


def _reason(error: Exception) -> str:
    from phantom.kernels.measure.operator_inputs import CannotMeasure

    if isinstance(error, CannotMeasure):
        return str(error)
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"


def measure_here(request: dict[str, Any], dispatch_s: float) -> dict[str, Any]:
    """Measure one kernel in this process; the answer is a timing, or the reason why not."""
    import torch

    try:
        with torch.no_grad():
            timing = _time(prepare(request), request, dispatch_s)
    except Exception as error:
        return {"ok": False, "reason": _reason(error)}
    return {
        "ok": True, "median_s": timing.median_s, "spread_s": timing.spread_s,
        "repetitions": timing.repetitions, "warmup": timing.warmup,
    }  # fmt: skip


def run_beside(request: dict[str, Any], stop: IO[bytes], answers: IO[bytes]) -> dict[str, Any]:
    """Run one kernel over and over until a message comes, as another rank of the job would meanwhile.

    Its operands are as many as fill the last-level cache, used in turn: another rank's are not in the cache
    either. A kernel whose operands stay in a core's own cache disturbs nobody and is not run.
    """
    import torch

    from phantom.kernels.measure.call_timing import CPU_WARM_BYTES, cpu_cache_bytes

    try:
        with torch.no_grad():
            prepared = [prepare(request)]
            disturbs = prepared[0].needed_bytes > CPU_WARM_BYTES
            if disturbs:
                copies = math.ceil(cpu_cache_bytes() / prepared[0].needed_bytes)
                prepared += [prepare(request) for _ in range(copies - 1)]
            prepared[0].call()
            write_message(answers, {"ok": True})
            for one in itertools.cycle(prepared):
                if select.select([stop], [], [], 0 if disturbs else None)[0]:
                    break
                one.call()
    except Exception as error:
        return {"ok": False, "reason": _reason(error)}
    read_message(stop)
    return {"ok": True}


def _keep_pages() -> None:
    """Keeps freed memory, so that a repeated kernel writes its result to pages that are there (glibc).

    In a job the pages of a large result may have to be faulted in, or not, as malloc has it; that is counted
    where the result is allocated (docs/local-cpu.md).
    """
    trim_threshold, mmap_threshold = -1, -3  # mallopt(3)
    try:
        library = ctypes.CDLL(None)
        library.mallopt(mmap_threshold, 32 << 20)  # the most that it takes
        library.mallopt(trim_threshold, (1 << 31) - 1)
    except (OSError, AttributeError):
        return  # another C library: faults are part of the measurement


def main() -> None:
    """Serve requests until stdin ends."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what an operator prints must not get between the answers
    import torch

    from phantom.kernels.measure.call_timing import dispatch_cost_s

    _keep_pages()
    threads = int(sys.argv[1]) if len(sys.argv) > 1 else 1
    torch.set_num_threads(threads)
    # In-place operators repeated on their own result would drift into denormals, which are slow and not the
    # job's case.
    torch.set_flush_denormal(True)
    torch.manual_seed(0)
    dispatch_s = dispatch_cost_s()
    write_message(answers, {"ready": True, "torch": torch.__version__, "dispatch_s": dispatch_s})
    requests = os.fdopen(os.dup(0), "rb", buffering=0)  # nothing may wait in a buffer where select looks
    while (request := read_message(requests)) is not None:
        if request.get("stop"):
            continue  # what ran beside has failed and said so
        if request.get("beside"):
            write_message(answers, run_beside(request, requests, answers))
        else:
            write_message(answers, measure_here(request, dispatch_s))


if __name__ == "__main__":
    main()
