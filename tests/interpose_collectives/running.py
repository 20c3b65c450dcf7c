"""Runs a job of this folder under `phantom run` in a process of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import simulation

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
    done = simulation.simulate(
        out,
        str(HERE / job),
        *arguments,
        gpus=gpus,
        nodes=nodes,
        options=("-v",),
        environment={"OMP_NUM_THREADS": "1", **variables},
        timeout_s=240,
        fails=None,
    )
    return Outcome(done.status, done.stdout + done.stderr, done.summary)
