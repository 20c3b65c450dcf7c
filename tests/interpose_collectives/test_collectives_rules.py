"""Stream rules, groups, futures, functional collectives, Gloo causality, error texts; the same time twice."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from interpose_collectives.running import run_job


@pytest.mark.timeout(290)
def test_rules_hold_and_times_repeat(tmp_path: Path) -> None:
    """Four ranks, two runs: all checks pass and every rank takes the same virtual nanoseconds."""
    ends = []
    for name in ("first", "second"):
        outcome = run_job("job_rules.py", tmp_path / name, gpus=4)
        assert outcome.status == 0, outcome.text[-6000:]
        found = sorted(re.findall(r"rules hold on rank (\d) after (\d+) ns", outcome.text))
        assert len(found) == 4
        ends.append(found)
    assert ends[0] == ends[1]
