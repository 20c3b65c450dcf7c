"""Cost of one operator on the virtual GPU beside FakeTensorMode: `python -m benchmarks.dispatch_overhead`.

Each operator runs on 1024 x 1024 float32 tensors in both worlds, alternating in one process; the figure is
the median over short batches of calls (other load on the machine only adds), the summary the median over the
operators. `add_` and `addcdiv_` get another scalar in every call, as a scheduled learning rate does.
"""

from __future__ import annotations

import itertools
import statistics
import sys
import time
from collections.abc import Callable

LIMIT_US = 3.0
LEAST_RATIO = 40.0


def _operators(device: str) -> dict[str, Callable[[], object]]:
    import torch

    a = torch.randn(1024, 1024, device=device)  # random: without a value, as activations are
    b = torch.randn(1024, 1024, device=device)
    w = torch.randn(1024, device=device)
    scalars = itertools.count(1)
    return {
        "add": lambda: a + b,
        "mm": lambda: torch.mm(a, b),
        "softmax": lambda: torch.softmax(a, -1),
        "layer_norm": lambda: torch.nn.functional.layer_norm(a, (1024,), w, w),
        "gelu": lambda: torch.nn.functional.gelu(a),
        "cat": lambda: torch.cat((a, b)),
        "sum": lambda: a.sum(-1),
        "mul_": lambda: a.mul_(b),
        "add_ (changing scalar)": lambda: a.add_(b, alpha=1e-3 / next(scalars)),
        "addcdiv_ (changing scalar)": lambda: a.addcdiv_(a, b, value=1e-3 / next(scalars)),
    }


def _mean_us(call: Callable[[], object], calls: int) -> float:
    start = time.perf_counter()
    for _ in range(calls):
        call()
    return (time.perf_counter() - start) / calls * 1e6


def measure(rounds: int = 60) -> dict[str, tuple[float, float]]:
    """Microseconds per call by operator: (virtual GPU, FakeTensorMode)."""
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode

    virtual = _operators("cuda")
    mode = FakeTensorMode()
    with mode:
        fake = _operators("cuda")
    seen: dict[str, tuple[list[float], list[float]]] = {name: ([], []) for name in virtual}
    with torch.no_grad():
        for name in virtual:
            _mean_us(virtual[name], 20)
        for _ in range(rounds):
            for name in virtual:
                seen[name][0].append(_mean_us(virtual[name], 100))
                with mode:
                    _mean_us(fake[name], 1)
                    seen[name][1].append(_mean_us(fake[name], 4))
    return {
        name: (statistics.median(virtual), statistics.median(fake)) for name, (virtual, fake) in seen.items()
    }


def main() -> int:
    """Prints the table; 1 if a target is missed."""
    from tests.interpose_dispatch.attached import attach

    extension = attach()
    results = measure()
    print(f"{'operator':30} {'virtual us':>10} {'FakeTensor us':>14} {'ratio':>7}")
    for name, (virtual, fake) in results.items():
        print(f"{name:30} {virtual:10.2f} {fake:14.1f} {fake / virtual:7.1f}")
    median = statistics.median(virtual for virtual, _ in results.values())
    ratio = statistics.median(fake / virtual for virtual, fake in results.values())
    print(f"median {median:.2f} us (at most {LIMIT_US})")
    print(f"FakeTensorMode takes {ratio:.1f} times that (at least {LEAST_RATIO})")
    print(f"cache: {extension.dispatch_counters()}")
    return int(median > LIMIT_US or ratio < LEAST_RATIO)


if __name__ == "__main__":
    sys.exit(main())
