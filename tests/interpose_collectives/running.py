"""Runs a job of this folder under `phantom run` in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).parent
ROOT = HERE.parent.parent


class Outcome(NamedTuple):
    """Exit status, what was printed, and summary.json (empty if there is none)."""

    status: int
    text: str
    summary: dict[str, Any]


def run_job(
    job: str | Path,
    out: Path,
    *,
    gpus: int,
    nodes: int = 1,
    arguments: tuple[str, ...] = (),
    **variables: str,
) -> Outcome:
    """Runs `job` on nodes x gpus simulated GPUs with results in `out`."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), **variables}
    command = [sys.executable, "-m", "phantom.cli.main", "run", "-N", str(nodes), "-G", str(gpus), "-v"]
    done = subprocess.run(
        [*command, "--out", str(out), str(HERE / job), *arguments],
        capture_output=True,
        text=True,
        timeout=240,
        env=environment,
        cwd=ROOT,
    )
    summary = out / "summary.json"
    found = json.loads(summary.read_text()) if summary.exists() else {}
    return Outcome(done.returncode, done.stdout + done.stderr, found)
