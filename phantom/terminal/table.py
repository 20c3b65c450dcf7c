"""The final table of a run: with rich on a terminal, plain text elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TextIO

from rich.console import Console, Group, RenderableType
from rich.table import Table

from phantom.terminal.units import count, rate, seconds, share, size

TITLE = "Simulated run"
WARNINGS_SHOWN = 8
TOP_KERNELS, TOP_COLLECTIVES, TOP_COPIES = 10, 5, 3
HOST_COPIES = {"h2d": "host to device", "d2h": "device to host"}

Row = tuple[str, str]


def _times(summary: Mapping[str, Any]) -> list[Row]:
    steps = summary.get("steps") or []
    step = summary.get("step_virtual_s") or {}
    if not steps:
        return [("steps", "none seen (no torch.optim optimizer was stepped)")]
    counted = f"{len(steps)} steps" + (", the first left out" if len(steps) > 1 else "")
    rows = [
        ("step time, median", f"{seconds(step.get('median'))}  ({counted})"),
        ("step time, min / max", f"{seconds(step.get('min'))} / {seconds(step.get('max'))}"),
    ]
    if summary.get("tokens_per_s") is not None:
        rows.append(("tokens/s", count(summary["tokens_per_s"])))
    if summary.get("samples_per_s") is not None:
        rows.append(("samples/s", f"{summary['samples_per_s']:,.1f}"))
    if summary.get("mfu") is not None:
        rows.append(("model FLOP/s utilisation", share(summary["mfu"])))
    return rows


def _shares(summary: Mapping[str, Any]) -> list[Row]:
    ranks = summary.get("ranks") or []
    keys = ("compute_s", "exposed_communication_s", "idle_s")
    parts = [sum(float(rank.get(key) or 0) for rank in ranks) for key in keys]
    if sum(parts) <= 0:
        return []
    text = " / ".join(share(part / sum(parts)) for part in parts)
    rows = [("compute / exposed communication / idle", text)]
    detail = summary.get("detail") or {}
    if detail:
        rows.append(("  of it waiting for other ranks", share(detail.get("waiting_for_ranks"))))
    if detail.get("bubble") is not None:
        rows.append(("pipeline bubble", share(detail["bubble"])))
    return rows


def _memory(summary: Mapping[str, Any]) -> list[Row]:
    ranks = summary.get("ranks") or []
    if not ranks:
        return []
    peak = max(ranks, key=lambda rank: int(rank.get("peak_allocated_bytes") or 0))
    capacity = (summary.get("gpu") or {}).get("memory_bytes")
    text = (
        f"{size(peak.get('peak_allocated_bytes'))} allocated, "
        f"{size(peak.get('peak_reserved_bytes'))} reserved (rank {peak.get('rank')})"
    )
    rows = [("peak memory per rank", text + (f" of {size(capacity)}" if capacity else ""))]
    out = [str(rank["rank"]) for rank in ranks if rank.get("oom")]
    if out:
        rows.append(("out of memory", f"rank{'s' if len(out) > 1 else ''} {', '.join(out[:16])}"))
    return rows


def _links(summary: Mapping[str, Any]) -> list[Row]:
    used = summary.get("links") or []
    if not used:
        return []
    busiest = used[0]
    text = f"{busiest['busiest']}: {share(busiest['busiest_utilisation'])} of its capacity"
    return [("busiest link", f"{text}, at most {share(busiest['peak_utilisation'])} at a time")]


def _coverage(summary: Mapping[str, Any]) -> list[Row]:
    rows = []
    coverage = summary.get("coverage") or {}
    if coverage:
        text = ", ".join(f"{name} {share(float(value))}" for name, value in coverage.items() if value)
        unpriced = sum(int(op.get("count", 0)) for op in summary.get("unpriced_ops") or [])
        more = f"; {unpriced} calls without a cost" if unpriced else ""
        rows.append(("kernel costs", (text or "no kernel") + more))
    reads = sum(int(read.get("count", 0)) for read in summary.get("unknown_value_reads") or [])
    if reads:
        rows.append(("reads of values never computed", count(reads)))
    return rows


def _routing(summary: Mapping[str, Any]) -> list[Row]:
    routers = summary.get("moe_routers") or []
    if not routers:
        return []
    sizes = sorted({(router["choices"], router["experts"]) for router in routers})
    chosen = ", ".join(f"{choices} of {experts}" for choices, experts in sizes)
    busiest = max(float(router["busiest_share"]) for router in routers)
    return [("MoE routing", f"{summary.get('moe_routing')}: {chosen} experts, the busiest {share(busiest)}")]


def _many(number: Any, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def rows(summary: Mapping[str, Any]) -> list[Row]:
    """The key figures: what, value. docs/results.md says what each means."""
    job = (
        f"{_many(summary.get('world_size'), 'GPU')} on {_many(summary.get('nodes'), 'node')} "
        f"of {summary.get('cluster')}"
    )
    found = [("job", job), ("status", str(summary.get("status")))]
    found += _times(summary) + _shares(summary) + _links(summary) + _memory(summary)
    found += _routing(summary) + _coverage(summary)
    found.append(("real time", f"{float(summary.get('wall_s') or 0):.1f} s"))
    return found


def kernel_rows(summary: Mapping[str, Any], limit: int = TOP_KERNELS) -> list[tuple[str, ...]]:
    """The kernels with most time: name, source, calls, time, share of all kernel time."""
    kernels = [k for k in summary.get("top_kernels") or [] if k.get("source") != "network"]
    classes = [c for c in summary.get("kernels") or [] if c.get("class") != "communication"]
    total = sum(float(c["virtual_s"]) for c in classes) or sum(float(k["virtual_s"]) for k in kernels)
    return [
        (k["name"], k["source"], count(k["count"]), seconds(k["virtual_s"]), share(k["virtual_s"] / total))
        for k in kernels[:limit]
        if total > 0
    ]


def collective_rows(summary: Mapping[str, Any], limit: int = TOP_COLLECTIVES) -> list[tuple[str, ...]]:
    """The collectives with most time: kind, ranks, size, count, time each, choice, bus bandwidth, limit."""
    found = [c for c in summary.get("collectives") or [] if c["kind"] not in HOST_COPIES]
    return [
        (
            c["kind"],
            group(c),
            size(c["bytes"]),
            count(c["count"]),
            seconds(c["virtual_s"] / c["count"] if c["count"] else None),
            f"{c.get('algorithm', '')}/{c.get('protocol', '')}",
            rate(c.get("bus_bandwidth_bytes_per_s")),
            rate(c.get("bus_limit_bytes_per_s")),
        )
        for c in found[:limit]
    ]


def group(collective: Mapping[str, Any]) -> str:
    """The group's size, with its nodes where it spans several."""
    nodes = collective.get("nodes", 1)
    return str(collective["ranks"]) if nodes < 2 else f"{collective['ranks']} on {nodes} nodes"


def copy_rows(summary: Mapping[str, Any], limit: int = TOP_COPIES) -> list[tuple[str, ...]]:
    """The copies between host and device with most time: direction, size, count, time each, bandwidth."""
    found = [c for c in summary.get("collectives") or [] if c["kind"] in HOST_COPIES]
    return [
        (
            HOST_COPIES[c["kind"]],
            size(c["bytes"]),
            count(c["count"]),
            seconds(c["virtual_s"] / c["count"] if c["count"] else None),
            rate(c.get("bus_bandwidth_bytes_per_s")),
        )
        for c in found[:limit]
    ]


KERNEL_COLUMNS = ("kernel", "cost from", "calls", "time", "share")
COLLECTIVE_COLUMNS = (
    "collective",
    "ranks",
    "size",
    "count",
    "time each",
    "algorithm",
    "bus bandwidth",
    "limit",
)
COPY_COLUMNS = ("copy", "size", "count", "time each", "bandwidth")


def final_table(summary: Mapping[str, Any]) -> RenderableType:
    """The result as a rich renderable."""
    figures = Table(show_header=False, title=TITLE, title_justify="left")
    for label, value in rows(summary):
        figures.add_row(label, value)
    parts: list[RenderableType] = [figures]
    for title, columns, lines in _lists(summary):
        table = Table(title=title, title_justify="left")
        for number, column in enumerate(columns):
            table.add_column(column, justify="left" if number < 2 else "right", overflow="fold")
        for line in lines:
            table.add_row(*line)
        parts.append(table)
    return Group(*parts)


def _lists(summary: Mapping[str, Any]) -> list[tuple[str, tuple[str, ...], list[tuple[str, ...]]]]:
    lists = [
        ("Kernels with most time, all ranks", KERNEL_COLUMNS, kernel_rows(summary)),
        ("Collectives with most time", COLLECTIVE_COLUMNS, collective_rows(summary)),
        ("Copies with most time", COPY_COLUMNS, copy_rows(summary)),
    ]
    return [entry for entry in lists if entry[2]]


def plain(summary: Mapping[str, Any]) -> str:
    """The result as text without control characters, for files and pipes."""
    figures = rows(summary)
    width = max(len(label) for label, _ in figures)
    lines = ["", TITLE, *(f"{label:<{width}}  {value}" for label, value in figures)]
    for title, columns, entries in _lists(summary):
        widths = [max(len(row[i]) for row in [columns, *entries]) for i in range(len(columns))]
        lines += ["", title]
        for row in [columns, *entries]:
            cells = [
                cell.ljust(width) if number < 2 else cell.rjust(width)
                for number, (cell, width) in enumerate(zip(row, widths))
            ]
            lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def warning_lines(summary: Mapping[str, Any], *, out: Path | None = None) -> list[str]:
    """The first warnings, and where the others are."""
    warnings = list(summary.get("warnings") or [])
    lines = [f"warning: {text}" for text in warnings[:WARNINGS_SHOWN]]
    if len(warnings) > WARNINGS_SHOWN:
        path = (out or Path()) / "summary.json"
        lines.append(f"warning: {len(warnings) - WARNINGS_SHOWN} more in {path}")
    return lines


def show(
    summary: Mapping[str, Any],
    *,
    out: Path | None = None,
    quiet: bool = False,
    stream: TextIO | None = None,
) -> None:
    """Prints table and warnings (not when `quiet`) to standard output or `stream`."""
    console = Console(file=stream, highlight=False)
    if console.is_terminal:
        console.print(final_table(summary))
    else:
        console.out(plain(summary))
    for line in [] if quiet else warning_lines(summary, out=out):
        console.print(line, markup=False, soft_wrap=True, style="yellow" if console.is_terminal else None)
