"""The process that runs kernels to measure them: a crash or a hang of an operator is not the simulator's.

Started by :mod:`phantom.kernels.measure`; reads requests from stdin and answers on stdout, each a 4-byte
length and msgpack.
"""

from __future__ import annotations

import ctypes
import os
import sys
from typing import Any

from phantom.kernels.framing import read_message, write_message


def measure_here(request: dict[str, Any], dispatch_s: float) -> dict[str, Any]:
    """Measure one kernel in this process; the answer is a timing, or the reason why not."""
    import torch

    from phantom.kernels.cpu_form import cpu_form
    from phantom.kernels.description import parse_kernel
    from phantom.kernels.inputs import CannotMeasure, make_arguments, needed_bytes, resolve
    from phantom.kernels.timing import CPU_FLUSH_BYTES, CPU_WARM_BYTES, check_memory, time_cpu, time_cuda

    device = request["device"]
    try:
        kernel = parse_kernel(request["kernel"])
        if device == "cpu":
            kernel = cpu_form(kernel)
        needed = needed_bytes(kernel)
        check_memory(2 * needed, device, request.get("limit_bytes"))
        overload = resolve(kernel)
        args, keywords = make_arguments(kernel, overload._schema, device)
        with torch.no_grad():

            def call() -> None:
                overload(*args, **keywords)

            if device == "cpu":
                flush = CPU_FLUSH_BYTES if needed > CPU_WARM_BYTES else 0
                timing = time_cpu(
                    call, budget_s=request["budget_s"], dispatch_s=dispatch_s, flush_bytes=flush
                )  # fmt: skip
            else:
                cache = torch.cuda.get_device_properties(torch.device(device)).L2_cache_size
                flush = 2 * cache if needed > cache // 4 else 0
                timing = time_cuda(call, budget_s=request["budget_s"], flush_bytes=flush)
    except CannotMeasure as error:
        return {"ok": False, "reason": str(error)}
    except Exception as error:
        text = " ".join(str(error).split())[:300]
        return {"ok": False, "reason": f"{type(error).__name__}: {text}"}
    return {
        "ok": True, "median_s": timing.median_s, "spread_s": timing.spread_s,
        "repetitions": timing.repetitions, "warmup": timing.warmup,
    }  # fmt: skip


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

    from phantom.kernels.timing import dispatch_cost_s

    _keep_pages()
    threads = int(sys.argv[1]) if len(sys.argv) > 1 else 1
    torch.set_num_threads(threads)
    # In-place operators repeated on their own result would drift into denormals, which are slow and not the
    # job's case.
    torch.set_flush_denormal(True)
    torch.manual_seed(0)
    dispatch_s = dispatch_cost_s()
    write_message(answers, {"ready": True, "torch": torch.__version__, "dispatch_s": dispatch_s})
    while (request := read_message(sys.stdin.buffer)) is not None:
        write_message(answers, measure_here(request, dispatch_s))


if __name__ == "__main__":
    main()
