"""Holistic Trace Analysis reads the profiler traces and finds the same times (skipped where it is absent)."""

from __future__ import annotations

from pathlib import Path

import pytest

from phantom.export.kineto import write_kineto
from phantom.timeline.recording import load
from report.synthetic import write_run


def test_it_finds_the_same_breakdown(tmp_path: Path) -> None:
    analysis = pytest.importorskip("hta.trace_analysis", reason="HolisticTraceAnalysis is not installed")
    write_run(tmp_path / "run", ranks=4, steps=3)
    recording = load(tmp_path / "run")
    write_kineto(recording, tmp_path / "kineto")
    found = analysis.TraceAnalysis(trace_dir=str(tmp_path / "kineto"), include_last_profiler_step=True)
    table = found.get_temporal_breakdown(visualize=False).set_index("rank")
    for rank, spool in recording.ranks.items():
        compute_us = sum(step.compute_ps for step in spool.steps) / 1e6
        exposed_us = sum(step.exposed_ps for step in spool.steps) / 1e6
        idle_us = sum(step.idle_ps for step in spool.steps) / 1e6
        row = table.loc[rank]
        # HTA counts whole microseconds from the first kernel to the last.
        assert row["compute_time(us)"] == pytest.approx(compute_us, abs=len(spool.spans))
        assert row["non_compute_time(us)"] == pytest.approx(exposed_us, abs=len(spool.spans))
        assert row["idle_time(us)"] == pytest.approx(idle_us, abs=len(spool.spans))
    names = found.get_gpu_kernel_breakdown(visualize=False)[0]
    assert set(names["kernel_type"]) >= {"COMPUTATION", "COMMUNICATION"}
