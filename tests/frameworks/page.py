"""docs/frameworks.md from the outcomes of all cases."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from phantom.terminal.units import seconds, size

from .outcome import Outcome

_HEAD = """# Training frameworks, unmodified

Made by `make frameworks`; do not edit. Each row is a run of `phantom run -N nodes -G gpus -- COMMAND` with
nothing of the framework or of the script changed; the cases are in tests/frameworks. Step time is virtual
(median step, the first left out), peak memory is the largest allocated on any rank. Models are small: the
matrix shows that a feature runs, is priced throughout and ends; what the figures must agree with is tested in
tests/frameworks/test_*.py.

`refused` rows must end with an error that names the thing; `fails without phantom too` is the framework's own
error, the same on plain PyTorch on the CPU. A row that failed stays in the table.

"""

_COMMAND_LINES = Path(__file__).with_name("command_lines.md")
"""Command lines of the frameworks' own pages that were typed by hand, and what differed."""

_STATUSES = ("ok", "refused", "fails without phantom too", "failed", "not run")


def page(outcomes: Sequence[Outcome]) -> str:
    """The whole page: one table per framework, in the order of the cases."""
    parts = [_HEAD, _count(outcomes), "\n"]
    for framework in dict.fromkeys(outcome.framework for outcome in outcomes):
        rows = [outcome for outcome in outcomes if outcome.framework == framework]
        parts.append(f"\n## {framework}\n\n{_table(rows)}")
    parts.append("\n" + _COMMAND_LINES.read_text())
    return "".join(parts)


def _count(outcomes: Sequence[Outcome]) -> str:
    words = [outcome.status.split(":")[0] for outcome in outcomes]
    counted = [f"{words.count(word)} {word}" for word in _STATUSES if word in words]
    return f"{len(words)} cases: {', '.join(counted)}\n"


def _table(rows: Sequence[Outcome]) -> str:
    lines = [
        "| case | version | feature | command | ranks | step time | peak memory | status |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        step = seconds(row.step_virtual_s)
        memory = size(row.peak_memory_bytes or None)
        ranks = f"{row.nodes} x {row.gpus_per_node}"
        cells = [row.name, row.version, row.feature, f"`{row.command}`", ranks, step, memory, row.status]
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n"
