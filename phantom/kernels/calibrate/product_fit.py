"""Fits the constants of matrix products to the tables of serving libraries and training steps.

One set of constants per architecture and data type, and one per library and format for the cast of the
activations; starting values are those of ``data/constants_start.json``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from phantom.kernels.calibrate.product_rows import FORMATS, ProductCase, serving_cases, training_cases
from phantom.kernels.predict.constants import build_constants
from phantom.kernels.predict.rule_context import Context

Name = tuple[str, str]
"""A constant: its group and its name in it."""

_SHARES = {
    "efficiency": 1.0, "dram": 1.0, "quantization": 1.0, "warm": 0.97, "sustained": 1.0, "grouped": 1.2,
    "epilogue": 1.0,
}  # fmt: skip
"""Upper limits of constants that are shares of something; the others may move by a factor of _REACH."""
_REACH = 30.0
_PRIOR = 0.02
"""Weak pull towards the starting value, per unit of the logarithm."""
_ROBUST = 0.1
"""Width of the Cauchy loss: log errors beyond it count less (libraries choose badly for some shapes)."""


@dataclass(frozen=True)
class ProductFit:
    """One group to fit: the architecture, the group of the product, and which rows say something about it."""

    architecture: str
    group: str
    form: str
    training: bool = False
    free: tuple[str, ...] = (
        "efficiency", "small_tile", "balance_flops_per_byte", "block_gb_per_s", "dram", "norm", "tile_us",
        "quantization",
    )  # fmt: skip


_SPLIT = (*ProductFit.free, "split_us")
_WARM = ("warm", "warm_l2")
_LARGE = ("hopper", "blackwell", "blackwell-ultra")
FITS = (
    ProductFit("ampere", "gemm", "bfloat16", free=(*_SPLIT, "floor_us")),
    ProductFit("ada", "gemm", "bfloat16", free=(*_SPLIT, "floor_us", *_WARM)),
    ProductFit("hopper", "gemm", "bfloat16", free=(*_SPLIT, "floor_us")),
    ProductFit("blackwell", "gemm", "bfloat16", free=(*_SPLIT, "floor_us")),
    ProductFit("blackwell-ultra", "gemm", "bfloat16", free=(*_SPLIT, "floor_us")),
    ProductFit("blackwell-rtx", "gemm", "bfloat16", free=(*_SPLIT, "floor_us", *_WARM)),
    *(ProductFit(name, "gemm.fp8", "fp8", free=_SPLIT) for name in _LARGE),
    *(ProductFit(name, "gemm.fp8", "fp8", free=(*_SPLIT, *_WARM)) for name in ("ada", "blackwell-rtx")),
    *(ProductFit(name, "gemm.fp8.block", "fp8_block") for name in _LARGE),
    *(ProductFit(name, "gemm.fp8.block", "fp8_block", free=(*ProductFit.free, *_WARM))
      for name in ("ada", "blackwell-rtx")),
    *(ProductFit(name, "gemm.fp4", "nvfp4") for name in ("blackwell", "blackwell-ultra")),
    ProductFit("blackwell-rtx", "gemm.fp4", "nvfp4", free=(*ProductFit.free, *_WARM)),
    ProductFit("ampere", "gemm", "", training=True, free=("rate_nn", "rate_nt", "epilogue", "grouped")),
    ProductFit("blackwell", "gemm", "", training=True,
               free=("sustained", "throttle_us", "rate_nn", "rate_nt", "epilogue", "grouped", "call_us")),
)  # fmt: skip
"""In this order: a training fit takes the rates of a single product from the serving fit before it."""


def cases_of(fit: ProductFit) -> list[ProductCase]:
    """Return the cases of a fit, those left out too."""
    if fit.training:
        return [case for case in training_cases() if case.gpu.architecture == fit.architecture]
    form = fit.form if FORMATS[fit.form].casts else ""
    serving = (case for case in serving_cases() if case.gpu.architecture == fit.architecture)
    return [case for case in serving if case.form == form]


def _free_names(fit: ProductFit, cases: Sequence[ProductCase]) -> list[Name]:
    casts = sorted({f"cast.{case.library}.{case.form}" for case in cases if case.form})
    return [(fit.group, name) for name in fit.free] + [
        (group, name) for group in casts for name in ("floor_us", "bytes")
    ]


def _limits(name: str, start: float) -> tuple[float, float]:
    """Bounds of the logarithm of a constant's factor."""
    high = min(_SHARES[name] / start, _REACH) if name in _SHARES else _REACH
    return math.log(1.0 / _REACH), math.log(max(high, 1.0 + 1e-6))


def fit_products(
    data: dict[str, Any], *, fits: Sequence[ProductFit] = FITS, report: Callable[[str], None] = print
) -> None:
    """Fit every group of *fits* in *data* (the ``architectures`` part of the constants), in place.

    Only rows of the fitting configurations count. Needs scipy.
    """
    for fit in fits:
        chosen = [case for case in cases_of(fit) if case.is_fitting]
        median = _fit(data, fit, chosen)
        report(f"{fit.architecture} {fit.group}: median {median:.1%} of {len(chosen)} rows")


def _fit(data: dict[str, Any], fit: ProductFit, cases: Sequence[ProductCase]) -> float:
    from scipy.optimize import least_squares

    names = _free_names(fit, cases)
    merged = build_constants(fit.architecture, data)
    start = [float(merged.group(group)[name]) for group, name in names]
    entry = data[fit.architecture]

    def write(factors: Sequence[float], digits: int = 12) -> None:
        for (group, name), value, factor in zip(names, start, factors):
            entry.setdefault(group, {})[name] = float(f"{value * math.exp(factor):.{digits}g}")

    def residuals(factors: Sequence[float]) -> list[float]:
        write(factors)
        constants = build_constants(fit.architecture, data)
        contexts = {gpu: Context(gpu, constants) for gpu in {case.gpu for case in cases}}
        return [math.log(case.price_s(contexts[case.gpu]) / case.seconds) for case in cases]

    def objective(factors: Sequence[float]) -> list[float]:
        return [*residuals(factors), *(_PRIOR * math.sqrt(len(cases)) * factor for factor in factors)]

    low, high = zip(*(_limits(name, value) for (_, name), value in zip(names, start)))
    origin = [min(0.0, upper - 1e-4) for upper in high]
    found = least_squares(
        objective, origin, bounds=(low, high), loss="cauchy", f_scale=_ROBUST, diff_step=2e-2, max_nfev=6
    )
    write(found.x, digits=4)
    constants = build_constants(fit.architecture, data)
    errors = sorted(abs(case.price_s(Context(case.gpu, constants)) / case.seconds - 1) for case in cases)
    return errors[len(errors) // 2]
