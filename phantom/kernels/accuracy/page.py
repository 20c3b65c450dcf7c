"""Error of the predictor on published rows, as a Markdown page.

Rows used for fitting and rows kept for checking are listed apart.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from phantom.kernels.accuracy.product_tables import context_of
from phantom.kernels.calibrate.case_prices import attention_case_s, gemm_case_s, memory_case_s
from phantom.kernels.calibrate.product_rows import ProductCase, serving_cases, training_cases
from phantom.kernels.calibrate.published_rows import (
    AttentionCase,
    GemmCase,
    MemoryCase,
    attention_cases,
    gemm_cases,
    memory_cases,
)
from phantom.kernels.predict.rule_context import Context


@dataclass(frozen=True)
class Result:
    """One published row and its prediction.

    Seconds, whether it was used for fitting, and its group in the tables.
    """

    identity: str
    group: tuple[str, ...]
    what: str
    published_s: float
    predicted_s: float
    fitting: bool
    source: str

    @property
    def error(self) -> float:
        """Signed relative error of the prediction."""
        return self.predicted_s / self.published_s - 1.0


def _context(case: Any) -> Context:
    return context_of(case.gpu)


def gemm_results() -> list[Result]:
    """Return every published product with its prediction."""

    def one(case: GemmCase) -> Result:
        first = case.shapes[0]
        text = f"{len(case.shapes)} x " if len(case.shapes) > 1 else ""
        text += f"{first.batch} x " if first.batch > 1 else ""
        text += f"{first.m} x {first.n} x {first.k} {first.layout}"
        kind = "tuned or best shape" if case.best_case else "library"
        group = (case.gpu.name, case.dtype, kind)
        return Result(
            case.identity,
            group,
            text,
            case.seconds,
            gemm_case_s(case, _context(case)),
            case.is_fitting,
            case.source,
        )

    return [one(case) for case in gemm_cases()]


def _case_results(cases: Iterable[ProductCase]) -> list[Result]:
    return [
        Result(
            "",
            (case.gpu.name, case.klass),
            case.what,
            case.seconds,
            case.price_s(context_of(case.gpu)),
            case.is_fitting,
            "",
        )
        for case in cases
    ]


def serving_results() -> list[Result]:
    """Return the linear layers of serving libraries, the cast of fp8 and fp4 activations included."""
    return _case_results(serving_cases())


def training_results() -> list[Result]:
    """Return the products of training steps by layout and accumulation."""
    return _case_results(training_cases())


_NOT_MODELLED = ("flash1", "triton")


def attention_results() -> list[Result]:
    """Return the published attention rows of implementations that PyTorch dispatches or users install."""

    def one(case: AttentionCase) -> Result:
        s = case.shape
        text = f"batch {s.batch}, {s.heads} heads, {s.q_len}, d {s.head_dim}{', causal' if s.causal else ''}"
        group = (case.gpu.name, case.implementation, case.part)
        return Result(
            case.identity,
            group,
            text,
            case.seconds,
            attention_case_s(case, _context(case)),
            case.is_fitting,
            case.source,
        )

    return [one(case) for case in attention_cases() if case.implementation not in _NOT_MODELLED]


def memory_results() -> list[Result]:
    """Return every published memory-bound row with its prediction."""

    def one(case: MemoryCase) -> Result:
        text = f"{case.traffic_bytes / 1e6:,.3f} MB moved"
        return Result(
            case.identity, (case.gpu.name, case.kind, ""), text, case.seconds, memory_case_s(case,
            _context(case)),
            case.is_fitting, case.source,
        )  # fmt: skip

    return [one(case) for case in memory_cases()]


def summary(results: Iterable[Result]) -> list[tuple[tuple[str, ...], int, float, float, float, float]]:
    """Return (group, rows, median |error|, 90th percentile, worst, median signed error) by group."""
    groups: dict[tuple[str, ...], list[Result]] = defaultdict(list)
    for result in results:
        groups[result.group].append(result)
    table = []
    for group, rows in sorted(groups.items()):
        errors = sorted(abs(r.error) for r in rows)
        p90 = errors[min(len(errors) - 1, int(0.9 * len(errors)))]
        signed = statistics.median(r.error for r in rows)
        table.append((group, len(rows), statistics.median(errors), p90, errors[-1], signed))
    return table


def _table(results: Sequence[Result], names: Sequence[str]) -> list[str]:
    lines = [
        f"| {' | '.join(names)} | rows | median error | 90th percentile | worst | bias |",
        f"|{'---|' * len(names)}---:|---:|---:|---:|---:|",
    ]
    for group, rows, median, p90, worst, signed in summary(results):
        cells = " | ".join(group[: len(names)])
        lines.append(f"| {cells} | {rows} | {median:.1%} | {p90:.1%} | {worst:.1%} | {signed:+.1%} |")
    return lines


def _worst(results: Sequence[Result], count: int) -> list[str]:
    lines = ["| row | where | what | published us | predicted us | error |", "|---|---|---|---:|---:|---:|"]
    for r in sorted(results, key=lambda r: -abs(r.error))[:count]:
        where = " ".join(part for part in r.group if part)
        figures = f"{r.published_s * 1e6:,.1f} | {r.predicted_s * 1e6:,.1f} | {r.error:+.0%}"
        lines.append(f"| {r.identity} | {where} | {r.what} | {figures} |")
    return lines


def _section(title: str, note: str, results: Sequence[Result], names: Sequence[str]) -> list[str]:
    checked = [r for r in results if not r.fitting]
    fitted = [r for r in results if r.fitting]
    return [
        f"## {title}", "", note, "", f"### Rows kept for checking ({len(checked)})", "", *_table(checked,
        names), "",
        "Worst of them:", "", *_worst(checked, 12), "", f"### Rows used for fitting ({len(fitted)})", "",
        *_table(fitted, names), "",
    ]  # fmt: skip


def page() -> str:
    """Return the whole page."""
    lines = list(_HEAD)
    sections: list[tuple[str, str, Callable[[], list[Result]], tuple[str, ...]]] = [
        ("Products of serving libraries", _SERVING_NOTE, serving_results, ("GPU", "class")),
        ("Products of training steps", _TRAINING_NOTE, training_results, ("GPU", "class")),
        ("Matrix products", _GEMM_NOTE, gemm_results, ("GPU", "dtype", "kind")),
        ("Attention", _ATTENTION_NOTE, attention_results, ("GPU", "implementation", "pass")),
        ("Memory-bound kernels", _MEMORY_NOTE, memory_results, ("GPU", "kind")),
    ]
    for title, note, results, names in sections:
        lines += _section(title, note, results(), names)
    lines += ["## Not checked", "", _NOT_CHECKED, ""]
    return "\n".join(lines)


_HEAD = (
    "# Accuracy of predicted kernel costs",
    "",
    "Made by `python -m phantom.kernels.accuracy`; do not edit.",
    "The published rows are in `phantom/kernels/data/published_*.csv`, each with its source.",
    "A row belongs to the fitting or to the checking half by a hash of its shape. Constants are per",
    "architecture and kernel class only; they come from `python -m phantom.kernels.calibrate.constant_fit`,",
    "which reads the fitting half. Error = |predicted / published - 1|.",
    "",
)
_SERVING_NOTE = (
    "Linear layers as TensorRT-LLM, vLLM and SGLang call them, repeated back to back "
    "(`data/serving_products.csv.gz`: ai-dynamo/aiconfigurator). Two of three (n, k) configurations are for "
    "fitting, the others are left out whole. fp8 and fp4 rows hold the cast of the activations, priced as "
    "kernels of their own (`cast.LIBRARY.FORM` in `constants.json`). The worst rows are small m on L40S and "
    "RTX PRO 6000: operands of a repeated call stay in the large L2 or not by the kernel that the library "
    "chose, which `warm` takes as a matter of size. Interpolating the ratio of measured to predicted times "
    "over (m, n, k) was tried: on configurations left out it gained at most a point, and it made products of "
    "training steps worse (median 7.1 to 9.4 % on B200), so no table of times is looked up."
)
_TRAINING_NOTE = (
    "Products and grouped products as a training step calls them, forward (TN), data gradient (NN) and "
    "weight gradient (NT, accumulating), at the clock that the power limit allows "
    "(`data/training_products.csv.gz`: MooreThreads/SimuMax). Fitted on them: `sustained`, `throttle_us`, "
    "`epilogue`, `grouped` and the rates of the layouts; a configuration's forward and gradient products are "
    "left out together. The worst rows are of 0.1 to 0.6 TFLOP on B200: between the clock of a benchmark and "
    "that of a long product the measurements scatter (4096 x 4096 x 7168: 862 TFLOP/s, 4096 x 3072 x 4096: "
    "1,433)."
)
_GEMM_NOTE = (
    "Rows whose source looked for the best shape or tuned the kernel stand apart: they are upper bounds of "
    "what a job sees. These are short benchmarks of one product, so the sustained-clock factor of jobs "
    "(`sustained` in `constants.json`, A100 and H100, fitted on `training_fit_rows.csv`) is left out here."
)
_ATTENTION_NOTE = (
    "`flash` is FlashAttention-2 (PyTorch's own), `efficient` the memory-efficient kernels, `math` the "
    "unfused form, of which nothing is fitted. Most rows are bars of figures, read by eye. Those with a "
    "pass of their own on B200 and A100 PCIe are calls of TransformerEngine's module (SimuMax): a "
    "profiler's span, synchronised before each call, so with 8 heads at 4k most of forward is the host's "
    "gap between the call's kernels (`te_call` in `constants.json`, one figure per architecture and "
    "pass); the kernel itself takes a third. Calls of inference engines and DeepEP: "
    "[accuracy-engine-calls.md](accuracy-engine-calls.md). On Blackwell `flash` takes its backward rate "
    "from kn0498, the profile of a step; of the two other profiles with such a bucket it is 8 % (kn0494) "
    "and 3 % (kn0524) above with one forward pass a layer (`tests/kernels/test_attention.py`). kn0494 has "
    "205 launches, as many as with recomputation: then it is 23 %."
)
_MEMORY_NOTE = (
    "Copies by size, large copies (size not stated: 2 GiB moved is taken), quantisation kernels (bytes from "
    "rate and time)."
)
_NOT_CHECKED = (
    "No published row was found for: convolution, normalisations, softmax, embedding, sorting, indexing, "
    "random numbers, optimizers, FFT and linear algebra, fp32 products on Ampere and later. Their constants "
    "are set by hand (`base` in `constants.json`) on top of the fitted bandwidth of the architecture."
)
