"""Runs a script of one or more ranks with stand-ins and returns what it printed and its summary."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import simulation

ROOT = Path(__file__).parents[2]


def run_script(
    folder: Path, text: str, *options: str, gpus: int = 1, fails: bool = False, **variables: str
) -> tuple[str, dict[str, Any]]:
    """`phantom run OPTIONS script.py`; returns rank 0's log and summary.json. Fails as the job does unless
    `fails`, where it must."""
    script = folder / "script.py"
    script.write_text(text)
    done = simulation.simulate(
        folder / "run", str(script), gpus=gpus, options=("-q", *options), environment=variables,
        cwd=folder, timeout_s=200, fails=fails,
    )  # fmt: skip
    return "".join(done.logs[:1]) + done.stderr, done.summary
