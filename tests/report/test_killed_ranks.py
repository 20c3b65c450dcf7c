"""The report of a run whose ranks were killed early."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from phantom.report import finish
from phantom.timeline.recording import load


@pytest.mark.parametrize("timeline", [False, True])
def test_ranks_that_wrote_nothing_are_named_and_the_page_is_there(tmp_path: Path, timeline: bool) -> None:
    (tmp_path / "spool").mkdir()
    for rank in (1, 0, 10):
        (tmp_path / "spool" / f"rank-{rank}.msgpack").touch()
    summary = {"schema": 1, "status": "interrupted", "steps": [], "step_virtual_s": {}, "ranks": []}
    (tmp_path / "summary.json").write_text(json.dumps({**summary, "world_size": 11, "nodes": 1}))
    assert load(tmp_path).without_record == (0, 1, 10)
    finished = finish.finish(tmp_path, timeline=timeline)
    assert any(text.endswith("missing here: 0, 1, 10") for text in finished.warnings)
    assert (tmp_path / "report.html").exists()
