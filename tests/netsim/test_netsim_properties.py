"""What must hold for every job: fairness, conservation, and that neither order nor rollback nor commit
shows.
"""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from netsim_jobs import CLUSTERS, Start, jobs, network, reference, run

from netsim.network import Network
from netsim.sharing.blocks import ManyBlock, SingleBlock
from netsim.sharing.maxmin import solve, solve_plain, violations

FABRICS = st.sampled_from(sorted(CLUSTERS))
PROPERTY = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def trace(net: Network) -> list[tuple[object, ...]]:
    """Every rate change of everything that has finished, to the bit."""
    result: list[tuple[object, ...]] = []
    for flight in net._finished:
        for block in flight.blocks:
            entries = tuple(
                (e[0], np.asarray(e[1]).tobytes(), np.asarray(e[2]).tobytes()) for e in block.history
            )
            result.append((flight.op_id, block.index, block.begin_ps, block.end_ps, entries))
    return sorted(result, key=lambda r: r[:2])  # type: ignore[return-value]


def completions(fabric: str, job: list[Start]) -> list[tuple[int, int]]:
    return sorted(run(network(fabric), job))


def full_trace(fabric: str, job: list[Start]) -> list[tuple[object, ...]]:
    net = network(fabric)
    run(net, job)
    return trace(net)


@PROPERTY
@given(fabric=FABRICS, job=jobs())
def test_rates_are_feasible_and_max_min_fair_at_every_event(fabric: str, job: list[Start]) -> None:
    net = network(fabric)
    for item in job:
        while (event := net.next_event_ps()) is not None and event <= item.start_ps:
            net.advance(event)
            assert net.check() == []
        net.start(item.op_id, item.op, item.start_ps)
    while (event := net.next_event_ps()) is not None:
        net.advance(event)
        assert net.check() == []


@PROPERTY
@given(fabric=FABRICS, job=jobs(largest=6))
def test_agrees_with_solving_from_scratch(fabric: str, job: list[Start]) -> None:
    net = network(fabric)
    ends = dict(run(net, job))
    expected = reference(net, job)
    assert ends.keys() == expected.keys()
    for op_id, end_ps in expected.items():
        assert ends[op_id] == pytest.approx(end_ps, rel=1e-9, abs=20)


@PROPERTY
@given(fabric=FABRICS, job=jobs())
def test_bytes_are_conserved(fabric: str, job: list[Start]) -> None:
    net = network(fabric)
    run(net, job)
    for flight in net._finished:
        for block in flight.blocks:
            if block.shape is None:
                continue
            edges = [entry[0] for entry in block.history] + [block.end_ps]
            carried = 0.0
            for entry, begin, end in zip(block.history, edges, edges[1:]):
                rate = np.asarray(entry[2]) * block.shape.weights
                carried += rate * (end - begin) * 1e-12
            if isinstance(block, SingleBlock):
                # Ends are rounded up to whole picoseconds, a few bytes at most.
                assert block.size <= carried[0] * (1 + 1e-9) + 1e-3
                assert carried[0] <= block.size * (1 + 1e-9) + 1.0
            elif isinstance(block, ManyBlock):
                assert np.all(block.sizes <= carried * (1 + 1e-9) + 1e-3)


@PROPERTY
@given(fabric=FABRICS, job=jobs(), seed=st.integers(0, 1000))
def test_order_of_starts_at_one_time_does_not_matter(fabric: str, job: list[Start], seed: int) -> None:
    shuffled = list(job)
    random.Random(seed).shuffle(shuffled)
    shuffled.sort(key=lambda s: s.start_ps)
    assert full_trace(fabric, shuffled) == full_trace(fabric, job)


@PROPERTY
@given(fabric=FABRICS, job=jobs(), seed=st.integers(0, 1000))
def test_visiting_an_instant_twice_does_not_matter(fabric: str, job: list[Start], seed: int) -> None:
    """Operations that start at an instant that the network has already processed."""
    net = network(fabric)
    for item in job:
        net.advance(item.start_ps)
        net.start(item.op_id, item.op, item.start_ps)
    net.advance(1 << 60)
    assert trace(net) == full_trace(fabric, job)


def lookahead(net: Network, job: list[Start], order: list[Start], points: list[int], *, commit: bool) -> None:
    """Reveal operations in any order, running ahead in between and rolling back when one starts in the
    past.
    """
    known: dict[int, Start] = {}
    ends: dict[int, int] = {}

    def replay(item: Start) -> None:
        net.start(item.op_id, item.op, item.start_ps)

    started: set[int] = set()
    now = 0
    for item, ahead in zip(order, points):
        known[item.op_id] = item
        if item.start_ps < now:
            net.rollback(item.start_ps)
            now = item.start_ps
            started = {i for i in started if known[i].start_ps <= now}
            ends = {i: e for i, e in ends.items() if e <= now}
        until = now + ahead
        if commit:
            # Nothing that is still to be revealed starts before this.
            net.commit(min([s.start_ps for s in job if s.op_id not in known], default=now) if known else 0)
        for other in sorted(known.values(), key=lambda s: (s.start_ps, -s.op_id)):
            if other.op_id in started or other.start_ps > until:
                continue
            ends.update(net.advance(other.start_ps))
            replay(other)
            started.add(other.op_id)
        ends.update(net.advance(until))
        now = until
    for other in sorted(known.values(), key=lambda s: s.start_ps):
        if other.op_id not in started:
            ends.update(net.advance(other.start_ps))
            replay(other)
    ends.update(net.advance(1 << 60))
    lookahead.ends = ends  # type: ignore[attr-defined]


@PROPERTY
@given(fabric=FABRICS, job=jobs(), data=st.data(), commit=st.booleans())
def test_rollback_and_replay_equals_never_rolled_back(
    fabric: str, job: list[Start], data: st.DataObject, commit: bool
) -> None:
    order = data.draw(st.permutations(job))
    ahead = st.sampled_from([0, 1, 30_000_000, 100_000_000, 10_000_000_000])
    points = data.draw(st.lists(ahead, min_size=len(job), max_size=len(job)))
    net = network(fabric)
    lookahead(net, job, order, points, commit=commit)
    assert sorted(lookahead.ends.items()) == completions(fabric, job)  # type: ignore[attr-defined]
    if not commit:
        assert trace(net) == full_trace(fabric, job)


@PROPERTY
@given(fabric=FABRICS, job=jobs(), step=st.sampled_from([10_000_000, 60_000_000, 1_000_000_000]))
def test_commit_changes_nothing_and_bounds_history(fabric: str, job: list[Start], step: int) -> None:
    expected = completions(fabric, job)
    net = network(fabric)
    done: list[tuple[int, int]] = []
    waiting = list(job)
    now = 0
    while waiting or net.next_event_ps() is not None:
        while waiting and waiting[0].start_ps <= now + step:
            done += net.advance(waiting[0].start_ps)
            item = waiting.pop(0)
            net.start(item.op_id, item.op, item.start_ps)
        now += step
        done += net.advance(now)
        net.commit(now)
        assert not net._finished
    assert sorted(done) == expected


@st.composite
def systems(draw: st.DrawFn) -> tuple[np.ndarray, ...]:
    links = draw(st.integers(1, 6))
    flows = draw(st.integers(1, 12))
    rows, columns, demand = [], [], []
    for f in range(flows):
        used = draw(st.lists(st.integers(0, links - 1), min_size=1, max_size=links, unique=True))
        for c in used:
            rows.append(f)
            columns.append(c)
            demand.append(draw(st.sampled_from([0.25, 0.5, 1.0, 1.0, 2.0, 3.0])))
    caps = [draw(st.sampled_from([0.1, 1.0, 2.5, 100.0])) for _ in range(flows)]
    capacity = [draw(st.sampled_from([1.0, 2.0, 3.0, 10.0])) for _ in range(links)]
    return (
        np.array(rows),
        np.array(columns),
        np.array(demand),
        np.array(caps),
        np.array(capacity),
    )


@settings(max_examples=300, deadline=None)
@given(system=systems())
def test_solver_agrees_with_progressive_filling_and_has_the_certificate(
    system: tuple[np.ndarray, ...],
) -> None:
    level = solve(*system)
    assert violations(*system, level) == []
    assert level == pytest.approx(solve_plain(*system), rel=1e-9)


def test_the_certificate_sees_wrong_rates() -> None:
    rows, columns, demand = np.array([0, 1]), np.array([0, 0]), np.array([1.0, 1.0])
    caps, capacity = np.array([9.0, 9.0]), np.array([2.0])
    assert violations(rows, columns, demand, caps, capacity, np.array([1.0, 1.0])) == []
    assert violations(rows, columns, demand, caps, capacity, np.array([0.5, 1.5]))
    assert violations(rows, columns, demand, caps, capacity, np.array([1.5, 1.5]))
    assert violations(rows, columns, demand, caps, capacity, np.array([0.9, 0.9]))
