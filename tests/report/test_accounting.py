"""compute + exposed communication + idle = step, exactly, in what the ranks themselves record."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from interpose.build import is_current
from phantom.timeline.spool import read_rank

ROOT = Path(__file__).parents[2]


def test_recorded_steps_add_up_on_generated_jobs(tmp_path: Path) -> None:
    if not is_current():
        pytest.skip("the extension is not built: python -m interpose.build")
    spool = tmp_path / "rank-0.msgpack"
    done = subprocess.run(
        [sys.executable, "-m", "report.accounting_job", str(spool)],
        cwd=ROOT / "tests", env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, timeout=200,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-6000:]
    read = read_rank(spool)
    assert len(read.steps) > 100
    for step in read.steps:
        assert step.compute_ps + step.exposed_ps + step.idle_ps == step.end_ps - step.begin_ps
    assert (read.spans["end_ps"] >= read.spans["start_ps"]).all()


def test_the_last_step_is_accounted_for_though_its_end_is_not_announced_yet() -> None:
    """The join of two streams' tails is announced after the tails themselves; a rank may end in between."""
    if not is_current():
        pytest.skip("the extension is not built: python -m interpose.build")
    done = subprocess.run(
        [sys.executable, "-m", "report.last_step_job"],
        cwd=ROOT / "tests", env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, timeout=200,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.split("\n")[0] == "[(0, 90000000)]"
