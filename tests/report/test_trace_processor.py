"""SQL over the timeline, by Perfetto's own trace processor, gives the sums of summary.json."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from phantom.timeline.recording import load
from phantom.timeline.write import write_timeline
from report.synthetic import write_run
from report.trace_processor import Rows, ask

SUMS = ("compute_s", "exposed_communication_s", "idle_s")
SQL_STEPS = """
select process.pid - 2 as rank, {} from slice
join thread_track on slice.track_id = thread_track.id join thread using (utid) join process using (upid)
where thread.name = 'steps' and slice.name glob 'step *' and extract_arg(slice.arg_set_id, 'debug.step') >= 1
group by 1
""".format(
    ", ".join(
        f"sum(extract_arg(slice.arg_set_id, 'debug.{name[:-2]}_ps')) as {name[:-2]}_ps" for name in SUMS
    )
)
SQL_KERNELS = """
select process.pid - 2 as rank, sum(slice.dur) as ns, count(*) as slices
from slice join thread_track on slice.track_id = thread_track.id
join thread using (utid) join process using (upid)
where thread.name glob 'GPU*' and slice.category not glob '*communication*' and slice.depth = 0 group by 1
"""
SQL_JOB_STEPS = """
select slice.name, slice.dur as ns from slice join thread_track on slice.track_id = thread_track.id
join thread using (utid) where thread.name = 'steps (all ranks)' order by slice.ts
"""
SQL_COUNTERS = """
select process.pid - 2 as rank, max(counter.value) as bytes from counter
join process_counter_track on counter.track_id = process_counter_track.id join process using (upid)
where process_counter_track.name = 'memory allocated' group by 1
"""
SQL_FLOWS = "select count(distinct trace_id) as arrows from flow"
SQL_TROUBLE = """
select name, value from stats where value > 0 and (severity in ('error', 'data_loss'))
"""


def by_rank(rows: Rows) -> dict[int, dict[str, int]]:
    return {int(row["rank"]): row for row in rows}


def test_sql_over_16_ranks_and_3_steps_gives_the_sums_of_the_summary(tmp_path: Path) -> None:
    write_run(tmp_path, ranks=16, steps=3)
    recording = load(tmp_path)
    path = write_timeline(recording, tmp_path / "timeline.pftrace").path
    trouble, steps, kernels, job, memory, flows = ask(
        path, [SQL_TROUBLE, SQL_STEPS, SQL_KERNELS, SQL_JOB_STEPS, SQL_COUNTERS, SQL_FLOWS]
    )
    assert trouble == []
    summary = json.loads((tmp_path / "summary.json").read_text())
    sums, spans, peaks = by_rank(steps), by_rank(kernels), by_rank(memory)
    assert len(sums) == 16
    for rank in summary["ranks"]:
        number = rank["rank"]
        for name in SUMS:
            assert sums[number][f"{name[:-2]}_ps"] * 1e-12 == pytest.approx(rank[name], rel=1e-12)
        assert peaks[number]["bytes"] == rank["peak_allocated_bytes"]
        # The kernels of one stream do not overlap: their slices sum to all compute, within 1 ns each.
        compute_ps = sum(step.compute_ps for step in recording.ranks[number].steps)
        assert abs(spans[number]["ns"] * 1000 - compute_ps) <= 1000 * spans[number]["slices"]
    assert [row["name"] for row in job] == ["step 0", "step 1", "step 2"]
    for row, step in zip(job, summary["steps"]):
        assert row["ns"] * 1e-9 == pytest.approx(step["virtual_s"], abs=1e-9)
    assert flows[0]["arrows"] == len(recording.collectives)
