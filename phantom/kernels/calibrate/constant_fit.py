"""Fits the predictor's constants to published rows: ``python -m phantom.kernels.calibrate.constant_fit``.

Reads the hand-set ``data/constants_start.json`` and writes ``data/constants.json``.  Only constants per
architecture and kernel class are fitted, on the fitting half of the rows.
Needs scipy (a test dependency).
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from phantom.kernels.calibrate.case_prices import attention_case_s, gemm_case_s, memory_case_s
from phantom.kernels.calibrate.gpt_step import GptShape, attention_kernels, block_kernels, head_kernels
from phantom.kernels.calibrate.product_fit import fit_products
from phantom.kernels.calibrate.published_rows import (
    AttentionCase,
    GemmCase,
    MemoryCase,
    attention_cases,
    gemm_cases,
    memory_cases,
    training_rows,
)
from phantom.kernels.gpu import gpu_by_name
from phantom.kernels.predict.constants import build_constants
from phantom.kernels.predict.predictor import Predictor
from phantom.kernels.predict.rule_context import Context
from phantom.kernels.request.description import KernelDescription

Case = GemmCase | AttentionCase | MemoryCase
_DATA = Path(__file__).parents[1] / "data"
_START, _PATH = _DATA / "constants_start.json", _DATA / "constants.json"
_PRIOR = 0.03
# Physical limits of fitted constants; what is not listed may move by a factor of 30 either way.
_LIMITS: dict[str, tuple[float, float]] = {
    "efficiency": (0.3, 1.0), "dram": (0.4, 0.95), "norm": (1.5, 12.0), "balance_flops_per_byte": (8.0,
    64.0), "block_gb_per_s": (2.0, 600.0), "grouped": (0.3, 1.0),
    "rate_nn": (0.7, 1.3), "rate_nt": (0.7, 1.3), "unaligned": (0.2, 1.0), "saturation": (0.5, 0.95),
    "tail": (0.3, 1.0),
    "causal_rate": (0.7, 1.2), "floor_us": (0.5, 12.0), "tile_us": (0.05, 4.0), "split_us": (0.2, 20.0),
    "small_tile": (20.0, 8000.0),
}  # fmt: skip


def fit_group(
    data: dict[str, Any],
    architecture: str,
    group: str,
    free: Sequence[str],
    cases: Sequence[Case],
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


_GEMM_FREE = (
    "efficiency", "small_tile", "balance_flops_per_byte", "tile_us", "dram", "floor_us", "split_us", "norm",
    "rate_nn", "rate_nt",
    "block_gb_per_s", "unaligned",
)  # fmt: skip


def _fit_gemm(data: dict[str, Any], report: Callable[[str], None]) -> None:
    """Products up to Turing, on DeepBench's rows; later generations: `product_fit`."""
    cases = [case for case in gemm_cases() if case.is_fitting]

    def of(architecture: str, *dtypes: str) -> list[GemmCase]:
        return [c for c in cases if c.gpu.architecture == architecture and c.dtype in dtypes]

    starts: tuple[dict[str, float], ...] = (
        {},
        {"balance_flops_per_byte": 20, "block_gb_per_s": 15},
        {"small_tile": 300, "norm": 2, "block_gb_per_s": 10},
    )
    for architecture, group, dtype in (
        ("pascal", "gemm.fp32", "float32"), ("volta", "gemm.fp32", "float32"), ("volta", "gemm", "float16"),
        ("turing", "gemm.fp32", "float32"), ("turing", "gemm", "float16"),
    ):  # fmt: skip
        median = fit_group(
            data, architecture, group, _GEMM_FREE, of(architecture, dtype), gemm_case_s, starts=starts
        )
        report(f"{architecture} {group}: median {median:.1%}")


_ATTENTION_FREE = ("efficiency_64", "efficiency_128", "overhead_keys", "tail", "causal_rate", "floor_us")


def _fit_attention(data: dict[str, Any], report: Callable[[str], None]) -> None:
    cases = [case for case in attention_cases() if case.is_fitting]

    def of(architecture: str, implementation: str, forward_only: bool) -> list[AttentionCase]:
        return [
            c for c in cases
            if c.gpu.architecture == architecture and c.implementation == implementation and c.forward_only
            == forward_only
        ]  # fmt: skip

    for architecture, implementation in (("hopper", "flash"), ("hopper", "flash3"), ("hopper", "cudnn")):
        free = (*_ATTENTION_FREE, "efficiency_256")
        group = f"attention.{implementation}"
        median = fit_group(
            data, architecture, group, free, of(architecture, implementation, True), attention_case_s
        )
        report(f"{architecture} {group}: median {median:.1%}")
    group = "attention.flash.backward"
    median = fit_group(data, "hopper", group, _ATTENTION_FREE, of("hopper", "flash", False), attention_case_s)
    report(f"hopper {group}: median {median:.1%}")
    # No backward row has a head of 256: backward loses against forward what it loses at 128.
    hopper, forward = data["hopper"][group], data["hopper"]["attention.flash"]
    loss = hopper["efficiency_128"] / forward["efficiency_128"]
    hopper["efficiency_256"] = float(f"{forward['efficiency_256'] * loss:.4g}")
    _fit_ampere_attention(data, report, of)


def _fit_ampere_attention(
    data: dict[str, Any], report: Callable[[str], None], of: Callable[..., Any]
) -> None:
    """The A100 rows give forward and backward together.

    Backward's efficiency over forward's is taken from the H100's.
    """
    hopper = build_constants("hopper", data)
    for implementation in ("flash", "efficient"):
        forward, backward = f"attention.{implementation}", f"attention.{implementation}.backward"
        ratios = {
            f"efficiency_{d}": hopper.group("attention.flash.backward")[f"efficiency_{d}"]
            / hopper.group("attention.flash")[f"efficiency_{d}"]
            for d in (64, 128, 256)
        }
        entry = data["ampere"].setdefault(forward, {})
        linked = data["ampere"].setdefault(backward, {})

        def predict(case: AttentionCase, context: Context, ratios: dict[str, float] = ratios, linked:
        dict[str, float] = linked,
                    entry: dict[str, float] = entry) -> float:  # fmt: skip
            linked.update({name: entry.get(name, 0.5) * ratio for name, ratio in ratios.items()})
            return attention_case_s(case, Context(context.gpu, build_constants("ampere", data)))

        base = dict(build_constants("ampere", data).group(forward))
        entry.setdefault("efficiency_256", base["efficiency_256"])
        median = fit_group(
            data, "ampere", forward, _ATTENTION_FREE, of("ampere", implementation, False), predict
        )
        entry["efficiency_256"] = float(
            f"{entry['efficiency_128'] * base['efficiency_256'] / base['efficiency_128']:.4g}"
        )
        linked.update({name: float(f"{entry[name] * ratio:.4g}") for name, ratio in ratios.items()})
        report(f"ampere {forward}: median {median:.1%}")


def _fit_memory(data: dict[str, Any], report: Callable[[str], None]) -> None:
    cases = [case for case in memory_cases() if case.is_fitting]
    for architecture, free in (
        ("ampere", ("copy_floor_us", "saturation", "l2_gain", "l2_share")), ("hopper", ("saturation",)),
        ("blackwell", ("saturation",)),
        ("ada", ("saturation",)), ("ampere-consumer", ("saturation",)),
    ):  # fmt: skip
        chosen = [c for c in cases if c.gpu.architecture == architecture]
        if chosen:
            median = fit_group(data, architecture, "memory", free, chosen, memory_case_s)
            report(f"{architecture} memory: median {median:.1%}")


_KERNEL_SHARE = {"ampere": 0.975, "hopper": 0.98}
"""Share of a published FSDP step on 8 GPUs that the kernels of `gpt_step` take.

Chosen so that whole simulated steps of the fitting third of tests/accuracy (rows of one server) have little
bias: communication that is not hidden takes 1-3 % of them; optimizer, clipping and sharding the rest.
"""


def training_ratio(row: Mapping[str, str], context: Context) -> float:
    """Return predicted kernel time over published time of one micro-batch of a training row.

    Attention is counted unmasked: the rows with long sequences show that these runs spent that time on it
    (their
    kernels predate FlashAttention-2's speed on causal masks).
    """
    shape = GptShape(
        int(row["layers"]), int(row["hidden"]), int(row["heads"]), int(row["vocab"]),
        int(row["micro_batch"]), int(row["seq_len"]),
    )  # fmt: skip
    predictor = Predictor(context.gpu, constants=context.constants)
    forward, backward = block_kernels(shape)
    layer = [*forward, *backward, *attention_kernels(shape, causal=False)]

    def seconds(kernels: Sequence[KernelDescription]) -> float:
        return sum(found.seconds for kernel in kernels if (found := predictor.estimate(kernel)) is not None)

    predicted = shape.layers * seconds(layer) + seconds(head_kernels(shape))
    return predicted * float(row["tokens_per_s_per_gpu"]) / shape.tokens


def _fit_sustained(data: dict[str, Any], report: Callable[[str], None]) -> None:
    """Choose ``gemm.sustained`` so that kernels take their share of the step in the committed rows."""
    rows = training_rows()
    for architecture in _KERNEL_SHARE:
        entry = data[architecture].setdefault("gemm", {})
        chosen = [row for row in rows if gpu_by_name(row["gpu"]).architecture == architecture]

        def share(value: float, entry: dict[str, float] = entry, architecture: str = architecture,
                  chosen: Sequence[Mapping[str, str]] = tuple(chosen)) -> float:  # fmt: skip
            entry["sustained"] = value
            constants = build_constants(architecture, data)
            return statistics.median(
                training_ratio(row, Context(gpu_by_name(row["gpu"]), constants)) for row in chosen
            )

        low, high = 0.6, 1.0
        for _ in range(12):
            middle = (low + high) / 2
            low, high = (middle, high) if share(middle) > _KERNEL_SHARE[architecture] else (low, middle)
        entry["sustained"] = float(f"{(low + high) / 2:.3g}")
        got = share(entry["sustained"])
        report(f"{architecture} gemm.sustained: {entry['sustained']} (share {got:.3f} of {len(chosen)} rows)")


def fit_all(data: dict[str, Any], *, report: Callable[[str], None] = print) -> None:
    """Fit every group in place, memory first (other groups use its bandwidth)."""
    _fit_memory(data, report)
    _fit_gemm(data, report)
    fit_products(data, report=report)
    _fit_attention(data, report)
    _fit_sustained(data, report)


def write(document: dict[str, Any], path: Path = _PATH) -> None:
    """Write constants with one group per line, so that a refit shows as a small difference."""
    lines = ["{", '  "architectures": {']
    architectures = list(document["architectures"].items())
    for i, (name, groups) in enumerate(architectures):
        lines.append(f"    {json.dumps(name)}: {{")
        items = [f"      {json.dumps(group)}: {json.dumps(values)}" for group, values in groups.items()]
        lines.append(",\n".join(items))
        lines.append("    }" + ("," if i + 1 < len(architectures) else ""))
    lines += ["  }", "}", ""]
    path.write_text("\n".join(lines), encoding="utf-8")


def refit_products(fitted: dict[str, Any], start: dict[str, Any], *, report: Callable[[str], None]) -> None:
    """Fit products and ``sustained`` alone, in place, from the starting values; every other group stays."""
    for architecture, groups in start.items():
        entry = fitted.setdefault(architecture, {})
        entry.update({key: groups[key] for key in ("inherits", "note") if key in groups})
        entry.update({name: dict(groups[name]) for name in groups if name.startswith(("gemm", "cast"))})
    fit_products(fitted, report=report)
    _fit_sustained(fitted, report)


def main() -> None:
    """Refit everything, or products alone, and write the constants."""
    parser = argparse.ArgumentParser(prog="python -m phantom.kernels.calibrate.constant_fit")
    parser.add_argument("--products", action="store_true", help="fit products of Ampere and later alone")
    start = json.loads(_START.read_text(encoding="utf-8"))
    if parser.parse_args().products:
        document = json.loads(_PATH.read_text(encoding="utf-8"))
        refit_products(document["architectures"], start["architectures"], report=print)
    else:
        document = start
        fit_all(document["architectures"])
    write(document)


if __name__ == "__main__":
    main()
