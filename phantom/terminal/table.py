"""The final table of a run: with rich on a terminal, plain text elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import TextIO

from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from phantom.results.run_summary import Summary
from phantom.terminal.figures import Listing, listings, rows

TITLE = "Simulated run"
WARNINGS_SHOWN = 8
GAP, EDGES = 3, 2
"""Characters between two columns and at the edges of rich's SIMPLE_HEAD box."""
STATUS_STYLES = {"ok": "green", "interrupted": "yellow"}
"""Every other status is red. rich leaves colours out where NO_COLOR is set."""


def final_table(summary: Summary, *, width: int = 80) -> RenderableType:
    """The result as a rich renderable that fits a terminal of `width` columns."""
    figures = Table(show_header=False, title=TITLE, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    figures.add_column(overflow="fold")
    figures.add_column(overflow="fold")
    for label, value in rows(summary):
        style = STATUS_STYLES.get(value, "red") if label == "status" else ""
        figures.add_row(Text(label), Text(value, style=style))
    return Group(figures, *(_drawn(listing.fitted(width - EDGES, gap=GAP)) for listing in listings(summary)))


def _drawn(listing: Listing) -> Table:
    table = Table(title=listing.title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for number, column in enumerate(listing.columns):
        table.add_column(column, justify="left" if number < listing.left else "right", no_wrap=True)
    for entry in listing.entries:
        table.add_row(*(Text(cell) for cell in entry))
    return table


def plain(summary: Summary) -> str:
    """The result as text without control characters, for files and pipes."""
    figures = rows(summary)
    width = max(len(label) for label, _ in figures)
    lines = ["", TITLE, *(f"{label:<{width}}  {value}" for label, value in figures)]
    for listing in listings(summary):
        table = [listing.columns, *listing.entries]
        widths = [max(len(row[i]) for row in table) for i in range(len(listing.columns))]
        lines += ["", listing.title]
        for row in table:
            cells = [
                cell.ljust(width) if number < listing.left else cell.rjust(width)
                for number, (cell, width) in enumerate(zip(row, widths))
            ]
            lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def warning_lines(summary: Summary, *, out: Path | None = None) -> list[str]:
    """The first warnings, and where the others are."""
    warnings = summary.warnings
    lines = [f"warning: {text}" for text in warnings[:WARNINGS_SHOWN]]
    if len(warnings) > WARNINGS_SHOWN:
        path = (out or Path()) / "summary.json"
        lines.append(f"warning: {len(warnings) - WARNINGS_SHOWN} more in {path}")
    return lines


def show(
    summary: Summary,
    *,
    out: Path | None = None,
    quiet: bool = False,
    stream: TextIO | None = None,
) -> None:
    """Prints table and warnings (not when `quiet`) to standard output or `stream`."""
    console = Console(file=stream, highlight=False)
    if console.is_terminal:
        console.print(final_table(summary, width=console.width))
    else:
        console.out(plain(summary))
    for line in [] if quiet else warning_lines(summary, out=out):
        console.print(line, markup=False, soft_wrap=True, style="yellow" if console.is_terminal else None)
