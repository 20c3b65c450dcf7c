"""Breakdown, critical path and memory of recorded runs: sums that must hold on generated jobs."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phantom.report.critical_path import COMMUNICATION, COMPUTE, HOST, critical_path, shares
from phantom.report.intervals import covered_ps, length_ps, union
from phantom.report.memory import ACTIVATIONS, OTHER, PARAMETERS, categories, peak, peaks
from phantom.report.overview import breakdown, strips
from phantom.report.waiting import waiting
from phantom.timeline.recording import load
from report.synthetic import LAYERS, Layer, write_run

LAYER = st.builds(
    Layer,
    host_us=st.integers(0, 60),
    kernel=st.integers(0, 2),
    kernel_us=st.integers(0, 80),
    collective_bytes=st.sampled_from([0, 0, 1000, 500_000, 8_000_000]),
    wait=st.booleans(),
)


@settings(max_examples=40, deadline=None)
@given(
    layers=st.lists(LAYER, min_size=1, max_size=8),
    ranks=st.integers(1, 5),
    steps=st.integers(1, 3),
    skew=st.integers(0, 40),
)
def test_breakdown_and_critical_path_add_up(layers: list[Layer], ranks: int, steps: int, skew: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        write_run(Path(folder), ranks=ranks, steps=steps, layers=layers, skew_us=skew)
        recording = load(Path(folder))
    for step in recording.step_indices:
        for spool in recording.ranks.values():
            own = spool.step(step)
            assert own is not None
            found = breakdown(spool, own.begin_ps, own.end_ps)
            assert found.compute_ps + found.exposed_ps + found.idle_ps == own.end_ps - own.begin_ps
            split = waiting(recording, spool.rank, own.begin_ps, own.end_ps)
            assert split.total_ps == own.end_ps - own.begin_ps
            assert (split.compute_ps, split.idle_ps) == (own.compute_ps, own.idle_ps)
            assert (found.compute_ps, found.exposed_ps, found.idle_ps) == (
                own.compute_ps,
                own.exposed_ps,
                own.idle_ps,
            )
        begin, end = recording.step_bounds_ps(step)
        path = critical_path(recording, step)
        assert sum(segment.duration_ps for segment in path) == end - begin
        assert all(a.end_ps == b.start_ps for a, b in pairwise(path))
        if path:
            assert (path[0].start_ps, path[-1].end_ps) == (begin, end)
        assert sum(share.total_ps for share in shares(path)) == end - begin


def test_critical_path_follows_the_slow_rank(tmp_path: Path) -> None:
    layers = [Layer(1, 0, 100), Layer(1, 1, 10, collective_bytes=1_000_000, wait=True), Layer(1, 0, 5)]
    write_run(tmp_path, ranks=3, steps=2, layers=layers, skew_us=200)
    path = critical_path(load(tmp_path), 1)
    before = [segment for segment in path if segment.kind == COMPUTE and segment.name == "aten::mm"]
    assert before[0].rank == 2  # rank 2's host is slowest, so everybody waits for it
    assert {segment.kind for segment in path} == {COMPUTE, COMMUNICATION, HOST}
    (transfer,) = [segment for segment in path if segment.kind == COMMUNICATION]
    assert transfer.duration_ps == 15_000_000  # 10 us of data, 5 us of latency: no waiting in it


def test_union_is_exact() -> None:
    starts, ends = np.array([5, 0, 2, 9, 9]), np.array([7, 3, 4, 9, 12])
    found = union(starts, ends, 0, 11)
    assert [list(side) for side in found] == [[0, 5, 9], [4, 7, 11]]
    assert length_ps(found) == 8
    assert list(covered_ps(found, np.array([0, 6, 10]))) == [5, 2]


def test_strips_show_compute_communication_and_idle(tmp_path: Path) -> None:
    layers = [Layer(0, 0, 100, collective_bytes=9_500_000, wait=True), Layer(300, 1, 5)]
    write_run(tmp_path, ranks=2, steps=2, layers=layers, skew_us=0)
    strip = strips(load(tmp_path), 1, columns=48)[0]
    assert len(strip) == 48
    assert set(strip) == {"0", "1", "2"}
    layers[0] = Layer(0, 0, 100, collective_bytes=1000, wait=True)
    write_run(tmp_path / "late", ranks=2, steps=2, layers=layers, skew_us=90)
    first, last = strips(load(tmp_path / "late"), 1, columns=48).values()
    assert "3" in first
    assert "3" not in last


def test_peak_holders_add_up_and_know_the_parameters(tmp_path: Path) -> None:
    states, _ = write_run(tmp_path, ranks=2, steps=2)
    recording = load(tmp_path)
    found = peak(recording.ranks[0])
    assert found is not None
    assert found.allocated_bytes == max(row[3] for row in states[0].memory)
    assert sum(found.by_category.values()) == found.allocated_bytes
    assert found.by_category[PARAMETERS] == 64 << 20
    assert found.by_category[ACTIVATIONS] == len(LAYERS) << 20
    assert found.by_category[OTHER] == 0
    assert found.largest[0].category == PARAMETERS
    assert set(peaks(recording.ranks)) == {0, 1}


def test_a_step_that_was_not_recorded_is_an_error(tmp_path: Path) -> None:
    write_run(tmp_path, ranks=1, steps=1)
    with pytest.raises(KeyError, match="step 9"):
        critical_path(load(tmp_path), 9)


@pytest.mark.parametrize(("steps", "freed", "category"), [
    (3, "at the end", OTHER), (2, "at the end", OTHER),
    (3, "in a step", ACTIVATIONS), (1, "at the end", ACTIVATIONS),
])  # fmt: skip
def test_what_a_script_lets_go_of_only_at_its_end_was_no_activation(
    tmp_path: Path, steps: int, freed: str, category: str
) -> None:
    """Averaged weights, say: there before the first step, freed when main() returns."""
    write_run(tmp_path, ranks=1, steps=steps)
    spool = load(tmp_path).ranks[0]
    born, gone = spool.memory[:1].copy(), spool.memory[:1].copy()
    born["address"], born["bytes"] = 0x9000, 1 << 20
    gone["address"], gone["bytes"] = 0x9000, -(1 << 20)
    step = spool.steps[-1] if freed == "at the end" else spool.steps[1]
    gone["time_ps"] = step.end_ps + 1 if freed == "at the end" else step.begin_ps + 1
    changed = replace(
        spool,
        memory=np.concatenate([born, spool.memory, gone]),
        tags=tuple(replace(tag, at=tag.at + 1) for tag in spool.tags),
    )
    assert categories(changed)[0] == category
