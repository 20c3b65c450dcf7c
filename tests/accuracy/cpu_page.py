"""The page of the CPU jobs: docs/accuracy-cpu.md."""
# ruff: noqa: E501 - lines of a Markdown page

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import TYPE_CHECKING, Any

import torch

from phantom.kernels.measure.local_device import cpu_name

if TYPE_CHECKING:
    from .cpu import Result

MEDIAN_LIMIT, WORST_LIMIT = 0.08, 0.15


def accepted(results: Sequence[Result]) -> bool:
    """Median error at most the larger of 8 % and twice the median spread; every job's at most that of 15 %."""
    return all(result.within(WORST_LIMIT) for result in results) and _median_within(results)


def _median_within(results: Sequence[Result]) -> bool:
    good = [result for result in results if not result.failure]
    if len(good) < len(results) or not good:
        return False
    limit = max(MEDIAN_LIMIT, 2 * median(result.spread for result in good))
    return median(abs(result.error) for result in good) <= limit


def page(results: Sequence[Result], *, rounds: int, took_s: float) -> str:
    """Returns the page as Markdown."""
    good = [result for result in results if not result.failure]
    lines = [
        "# Jobs on this CPU, for real and simulated",
        "",
        f"Made by `make accuracy` (`python -m tests.accuracy.cpu`) in {took_s:.0f} s: {len(results)} jobs of "
        f"`tests/accuracy/jobs`, {rounds} rounds on {cpu_name()}, torch {torch.__version__}, one thread per rank, "
        "Gloo, and glibc told to keep freed memory in both runs (`KEEP_FREED_MEMORY` in `tests/accuracy/cpu.py`). In every round Gloo is measured, then each job is run for real and simulated in turn, its kernels "
        "measured anew; the last round has one more real run, which is traced for the budgets. A run counts with "
        "the median of its steps after the third, a job with the median of its runs. Spread: distance between the "
        "quartiles of the runs, over their median; kernels are measured anew for every simulated run, which has their noise. A job passes with an error of at most 15 %, or twice its "
        "spread of real runs where that is larger.",
        "",
        "| job | ranks | virtual | real | error | spread of real runs | of simulated runs | kernels measured | |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for r in results:
        if r.failure:
            lines.append(
                f"| {r.job.name} | {r.job.ranks} | | | | | | | failed: {r.failure.splitlines()[0][:120]} |"
            )
            continue
        verdict = "" if r.within(WORST_LIMIT) else "**past the limit**"
        lines.append(
            f"| {r.job.name} | {r.job.ranks} | {r.virtual * 1e3:.1f} ms | {r.real * 1e3:.1f} ms | {r.error:+.1%} "
            f"| {r.spread:.1%} | {r.virtual_spread:.1%} | {r.measured_share:.0%} | {verdict} |"
        )
    if good:
        errors = [abs(r.error) for r in good]
        limit = max(MEDIAN_LIMIT, 2 * median(r.spread for r in good))
        lines += [
            "",
            f"Median error {median(errors):.1%} (limit {limit:.1%}: 8 %, or twice the median spread where that is "
            f"larger), worst {max(errors):.1%}. "
            + ("All limits are kept." if accepted(results) else "**The limits are not kept.**"),
        ]
    lines += _budgets([r for r in good if r.budget is not None])
    return "\n".join(lines) + "\n"


def _budgets(results: Sequence[Result]) -> list[str]:
    if not results:
        return []
    lines = [
        "",
        "## Where the errors come from",
        "",
        "Parts of the error of rank 0 in percent of the real step, by `phantom compare --trace` against a "
        "torch.profiler trace of three steps of the last real run; they add up to the error of that simulated run "
        "on that rank. The profiler lengthens every operator by about a microsecond, which moves error from "
        "\"kernels\" to \"host\". On a pair of ranks the collectives hold the wait for the other rank.",
        "",
        "| job | inventory | kernels | host | collectives | overlap | sum | operators that differ in number |",
        "|---|---|---|---|---|---|---|---|",
    ]  # fmt: skip
    for r in results:
        lines.append(_budget_row(r.job.name, r.budget or {}))
    return lines


def _budget_row(name: str, budget: dict[str, Any]) -> str:
    real_s = budget["real_s"]
    parts = (
        budget["inventory_s"], sum(budget["kernels_s"].values()), budget["host_s"],
        sum(budget["collectives_s"].values()), budget["overlap_s"], budget["error_s"],
    )  # fmt: skip
    other = sorted(
        (o for o in budget["operators"] if o["virtual_count"] != o["real_count"]),
        key=lambda o: -abs(o["inventory_s"]),
    )
    told = ", ".join(f"{o['op']} {o['virtual_count']:g}/{o['real_count']:g}" for o in other[:3])
    return f"| {name} | " + " | ".join(f"{part / real_s:+.1%}" for part in parts) + f" | {told} |"
