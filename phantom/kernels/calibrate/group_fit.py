"""Fits the constants of one group to cases: the common part of every fit of this room.  Needs scipy."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from phantom.kernels.predict.constants import build_constants
from phantom.kernels.predict.rule_context import Context

_PRIOR = 0.03
# Physical limits of fitted constants; what is not listed may move by a factor of 30 either way.
_LIMITS: dict[str, tuple[float, float]] = {
    "efficiency": (0.3, 1.0), "dram": (0.4, 0.95), "norm": (1.5, 12.0), "balance_flops_per_byte": (8.0,
    64.0), "block_gb_per_s": (2.0, 600.0), "grouped": (0.3, 1.0),
    "rate_nn": (0.7, 1.3), "rate_nt": (0.7, 1.3), "unaligned": (0.2, 1.0), "saturation": (0.5, 0.95),
    "tail": (0.02, 1.5),
    "overhead_keys": (2.0, 1500.0), "mask_keys": (1.0, 600.0), "clock_drop": (0.01, 0.8),
    "floor_us": (0.5, 12.0), "tile_us": (0.05, 4.0), "split_us": (0.2, 20.0),
    "small_tile": (20.0, 8000.0),
}  # fmt: skip


def fit_group(
    data: dict[str, Any],
    architecture: str,
    group: str,
    free: Sequence[str],
    cases: Sequence[Any],
    predict: Callable[[Any, Context], float],
    *,
    starts: Sequence[Mapping[str, float]] = ({},),
    robust: float = 0.1,
) -> float:
    """Fit the constants *free* of one group so that log errors on *cases* are small; write them into *data*.

    Cauchy loss of width *robust* (published rows have outliers), a weak prior at the present value, several
    starts.
    Returns the median absolute error.  The constants are kept to four digits.
    """
    from scipy.optimize import least_squares

    entry = data[architecture].setdefault(group, {})
    merged = dict(build_constants(architecture, data).group(group))
    saved = dict(entry)

    def residuals(z: Sequence[float], initial: Mapping[str, float]) -> list[float]:
        entry.update({name: initial[name] * math.exp(v) for name, v in zip(free, z)})
        constants = build_constants(architecture, data)
        return [math.log(predict(case, Context(case.gpu, constants)) / case.seconds) for case in cases]

    best: tuple[float, dict[str, float]] | None = None
    for start in starts:
        initial = {name: float(start.get(name, merged[name])) for name in free}

        def objective(z: Sequence[float], initial: Mapping[str, float] = initial) -> list[float]:
            return [*residuals(z, initial), *(_PRIOR * v for v in z)]

        limits = [_LIMITS.get(name, (initial[name] / 30, initial[name] * 30)) for name in free]
        low = [math.log(lower / initial[name]) for (lower, _), name in zip(limits, free)]
        high = [math.log(upper / initial[name]) for (_, upper), name in zip(limits, free)]
        origin = [min(max(0.0, a + 1e-3), b - 1e-3) for a, b in zip(low, high)]
        found = least_squares(
            objective, origin, bounds=(low, high), loss="cauchy", f_scale=robust, diff_step=1e-2, max_nfev=80
        )
        values = {name: float(f"{initial[name] * math.exp(v):.4g}") for name, v in zip(free, found.x)}
        if best is None or found.cost < best[0]:
            best = (float(found.cost), values)
    assert best is not None
    entry.clear()
    entry.update(saved)
    entry.update(best[1])
    errors = sorted(abs(math.exp(r) - 1) for r in residuals([0.0] * len(free), best[1]))
    entry.update(best[1])
    return errors[len(errors) // 2]
