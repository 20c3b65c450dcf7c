"""A run's summary as a short table on the terminal; plain text where there is no terminal."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

WARNINGS_SHOWN = 8


def seconds(value: float | None) -> str:
    """A duration with a unit that suits it."""
    if value is None:
        return "-"
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if abs(value) >= scale:
            return f"{value / scale:.4g} {unit}"
    return f"{value * 1e6:.3g} us"


def bytes_(value: float | None) -> str:
    """A size in GiB, MiB or KiB."""
    if value is None:
        return "-"
    for unit, scale in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if value >= scale:
            return f"{value / scale:.2f} {unit}"
    return f"{int(value)} B"


def rows(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The lines of the table: what, value."""
    steps = summary.get("steps") or []
    step = summary.get("step_virtual_s") or {}
    ranks = summary.get("ranks") or []
    job = f"{summary.get('world_size')} GPUs on {summary.get('nodes')} nodes of {summary.get('cluster')}"
    found = [("job", job), ("status", str(summary.get("status")))]
    if steps:
        counted = f"{len(steps)} steps" + (", the first left out" if len(steps) > 1 else "")
        found.append(("step time, median", f"{seconds(step.get('median'))}  ({counted})"))
        found.append(("step time, min / max", f"{seconds(step.get('min'))} / {seconds(step.get('max'))}"))
    else:
        found.append(("steps", "none seen (no torch.optim optimizer was stepped)"))
    for label, key in (("tokens/s", "tokens_per_s"), ("MFU", "mfu"), ("pipeline bubble", "bubble")):
        if summary.get(key) is not None:
            value = summary[key]
            found.append((label, f"{value:.1%}" if key != "tokens_per_s" else f"{value:,.0f}"))
    parts = {key: sum(float(rank.get(key) or 0) for rank in ranks)
             for key in ("compute_s", "exposed_communication_s", "idle_s")}  # fmt: skip
    whole = sum(parts.values())
    if whole > 0:
        found.append(
            ("compute / exposed communication / idle", " / ".join(f"{v / whole:.1%}" for v in parts.values()))
        )
    if ranks:
        peak = max(ranks, key=lambda rank: int(rank.get("peak_allocated_bytes") or 0))
        found.append((
            "peak memory per rank",
            f"{bytes_(peak.get('peak_allocated_bytes'))} allocated, "
            f"{bytes_(peak.get('peak_reserved_bytes'))} reserved (rank {peak.get('rank')})",
        ))  # fmt: skip
        out_of_memory = [str(rank["rank"]) for rank in ranks if rank.get("oom")]
        if out_of_memory:
            found.append(("out of memory", f"ranks {', '.join(out_of_memory)}"))
    coverage = summary.get("coverage") or {}
    if coverage:
        text = ", ".join(f"{name} {float(share):.1%}" for name, share in coverage.items() if share)
        unpriced = sum(int(op.get("count", 0)) for op in summary.get("unpriced_ops") or [])
        found.append(("kernel costs", text + (f"; {unpriced} calls without a cost" if unpriced else "")))
    reads = sum(int(read.get("count", 0)) for read in summary.get("unknown_value_reads") or [])
    if reads:
        found.append(("reads of values never computed", str(reads)))
    found.append(("real time", f"{summary.get('wall_s', 0):.1f} s"))
    return found


def show(summary: Mapping[str, Any], *, out: Path | None = None, quiet: bool = False) -> None:
    """Prints the table and the warnings to standard output."""
    lines = rows(summary)
    if sys.stdout.isatty():
        table = Table(show_header=False, title="Simulated run", title_justify="left")
        for label, value in lines:
            table.add_row(label, value)
        Console().print(table)
    else:
        width = max(len(label) for label, _ in lines)
        for label, value in lines:
            print(f"{label:<{width}}  {value}")
    warnings = [] if quiet else list(summary.get("warnings") or [])
    for text in warnings[:WARNINGS_SHOWN]:
        print(f"warning: {text}")
    if len(warnings) > WARNINGS_SHOWN:
        print(f"warning: {len(warnings) - WARNINGS_SHOWN} more in {(out or Path()) / 'summary.json'}")
