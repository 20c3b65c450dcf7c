"""The tutorial's comparison of TP x PP for a 13B model on 4 nodes: one run per row."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

from phantom.terminal.units import count, share, size

from .pages import ROOT

PAGE = ROOT / "docs" / "tutorial.md"
TOKENS_PER_STEP = 32 * 2048
MARK = "<!-- candidates -->\n"
HEAD = (
    "| TP | PP | DP | step | tokens/s "
    "| exposed transfer | waiting for ranks | utilisation | peak reserved |\n"
    "|---|---|---|---|---|---|---|---|---|\n"
)


def choices() -> list[tuple[int, int]]:
    """TP and PP of the loop in the tutorial."""
    found = re.search(r"for choice in (.*); do", PAGE.read_text(encoding="utf-8"))
    assert found is not None
    return [(int(tp), int(pp)) for tp, pp in re.findall(r'"(\d+) (\d+)"', found[1])]


def row(tp: int, pp: int, folder: Path) -> str:
    """Runs one choice as the tutorial does and returns its row of the table."""
    out = folder / f"tp{tp}-pp{pp}"
    options = ["-q", "-N", "4", "-G", "8", "--steps", "2", "--out", str(out)]
    job = [str(ROOT / "examples" / "train_3d.py"), "--tp", str(tp), "--pp", str(pp)]
    done = subprocess.run(
        [sys.executable, "-m", "phantom.cli.main", "run", *options, *job],
        cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=560,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    summary = json.loads((out / "summary.json").read_text())
    step_s = summary["step_virtual_s"]["median"]
    detail = summary["detail"]
    peak = max(rank["peak_reserved_bytes"] for rank in summary["ranks"])
    cells = [
        *map(str, (tp, pp, 32 // (tp * pp))),
        f"{step_s:.3f} s",
        count(TOKENS_PER_STEP / step_s),
        share(detail["transfer"]),
        share(detail["waiting_for_ranks"]),
        share(summary["mfu"]),
        size(peak),
    ]
    return "| " + " | ".join(cells) + " |"


def rows() -> list[str]:
    """The rows as they stand in the tutorial."""
    table = PAGE.read_text(encoding="utf-8").partition(MARK + HEAD)[2].partition("\n\n")[0]
    return table.splitlines()


def replaced(text: str, made: list[str]) -> str:
    """The tutorial's text with other rows."""
    before, mark, rest = text.partition(MARK)
    assert mark, f"{PAGE} has no {MARK.strip()}"
    return before + mark + HEAD + "\n".join(made) + "\n\n" + rest.partition("\n\n")[2]
