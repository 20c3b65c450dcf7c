"""Values through every collective, judged by real Gloo in the same job."""

from __future__ import annotations

from pathlib import Path

import pytest

from interpose_collectives.running import run_job


@pytest.mark.timeout(280)
def test_every_collective_gives_what_gloo_gives(tmp_path: Path) -> None:
    """All operations, eight dtypes, three ranks; then what Gloo lacks, pending values, objects."""
    outcome = run_job("job_compare.py", tmp_path / "out", gpus=3)
    assert outcome.status == 0, outcome.text[-6000:]
    assert "14 operations, 0 failures" in outcome.text
