"""Fits the predictor's constants to published rows: ``python -m phantom.kernels.calibrate.constant_fit``.

Reads the hand-set ``data/constants_start.json`` and writes ``data/constants.json``.  Only constants per
architecture and kernel class are fitted, on the fitting half of the rows.
Needs scipy (a test dependency).
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from phantom.kernels.calibrate.attention_fit import fit_attention
from phantom.kernels.calibrate.case_prices import gemm_case_s, memory_case_s
from phantom.kernels.calibrate.gpt_step import GptShape, attention_kernels, block_kernels, head_kernels
from phantom.kernels.calibrate.group_fit import fit_group
from phantom.kernels.calibrate.product_fit import fit_products
from phantom.kernels.calibrate.published_rows import GemmCase, gemm_cases, memory_cases, training_rows
from phantom.kernels.gpu import gpu_by_name
from phantom.kernels.predict.constants import build_constants
from phantom.kernels.predict.predictor import Predictor
from phantom.kernels.predict.rule_context import Context
from phantom.kernels.request.description import KernelDescription

_DATA = Path(__file__).parents[1] / "data"
_START, _PATH = _DATA / "constants_start.json", _DATA / "constants.json"


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
    fit_attention(data, report)
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
