"""What links carry: all bytes are accounted for, and no link ever carries more than its capacity."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from netsim_jobs import CLUSTERS, Start, jobs, network, run

from netsim.network import Network
from netsim.operation import Operation
from netsim.sharing.link_use import FIRST_BIN_PS, GRAIN, LinkUse, stretches

PROPERTY = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
FABRICS = st.sampled_from(sorted(CLUSTERS))


def recorded(net: Network, job: list[Start], use: LinkUse, *, commit: bool) -> None:
    """Runs the job and adds each operation when its end is final, as the simulator does."""
    net.keep_history = True
    for item in job:
        while (event := net.next_event_ps()) is not None and event <= item.start_ps:
            _take(net, net.advance(event), use, commit=commit)
        net.start(item.op_id, item.op, item.start_ps)
    while (event := net.next_event_ps()) is not None:
        _take(net, net.advance(event), use, commit=commit)


def _take(net: Network, done: list[tuple[int, int]], use: LinkUse, *, commit: bool) -> None:
    for op_id, _ in done:
        flight = net.finished(op_id)
        assert flight is not None
        use.add(flight)
    for _, end_ps in done if commit else ():
        net.commit(end_ps)


def bytes_by_plan(net: Network, job: list[Start]) -> np.ndarray:
    """Bytes that the operations put on each link, whatever the rates."""
    total = np.zeros(len(net.topology.links))
    for item in job:
        for part in net.planner.plan(item.op):
            if part.shape is not None:
                np.add.at(total, part.shape.links, part.shape.loads * part.sizes[part.shape.row])
    return total


@PROPERTY
@given(fabric=FABRICS, job=jobs(), commit=st.booleans(), small=st.booleans())
def test_no_byte_is_lost_and_no_link_is_overloaded(
    fabric: str, job: list[Start], commit: bool, small: bool
) -> None:
    net = network(fabric)
    use = LinkUse(len(net.topology.links), bins=64 if small else 4096)  # few have to become wider
    recorded(net, job, use, commit=commit)
    carried = np.array([use.curve(link).sum() for link in range(len(net.topology.links))])
    # An operation ends at a whole picosecond: up to one of its rate more than its bytes.
    assert carried == pytest.approx(bytes_by_plan(net, job), rel=1e-6, abs=10.0)
    for link, capacity in enumerate(net.topology.capacity):
        most = capacity * use.bin_ps * 1e-12 * (1 + 1e-9) + 100 * GRAIN  # one per change of a rate
        assert use.curve(link).max(initial=0.0) <= most


@PROPERTY
@given(fabric=FABRICS, job=jobs(), order=st.randoms(use_true_random=False), small=st.booleans())
def test_the_order_of_operations_changes_no_bit(
    fabric: str, job: list[Start], order: Random, small: bool
) -> None:
    net = network(fabric)
    net.keep_history = True
    run(net, job)
    flights = list(net._finished)
    uses = []
    for _ in range(2):
        uses.append(LinkUse(len(net.topology.links), bins=64 if small else 4096))
        for flight in flights:
            uses[-1].add(flight)
        order.shuffle(flights)
    one, two = uses
    assert (one.begin_ps, one.bin_ps) == (two.begin_ps, two.bin_ps)
    for link in range(len(net.topology.links)):
        assert one.curve(link).tobytes() == two.curve(link).tobytes()


@PROPERTY
@given(fabric=FABRICS, job=jobs(largest=5))
def test_rates_at_every_moment_fit_the_links(fabric: str, job: list[Start]) -> None:
    net = network(fabric)
    net.keep_history = True
    run(net, job)
    edges: dict[int, list[tuple[int, float]]] = {}
    for flight in net._finished:
        for stretch in stretches(flight):
            for link, rate in zip(stretch.links.tolist(), stretch.bytes_per_s.tolist()):
                edges.setdefault(link, []).extend([(stretch.begin_ps, rate), (stretch.end_ps, -rate)])
    for link, changes in edges.items():
        rate = 0.0
        for _, change in sorted(changes):  # at one instant what ends goes first
            rate += change
            assert rate <= net.topology.capacity[link] * (1 + 1e-9)


def test_one_message_fills_its_link() -> None:
    net = network("rails")
    use = LinkUse(len(net.topology.links))
    job = [Start(1, 0, Operation(kind="p2p", source=0, destination=1, size_bytes=1 << 28))]
    recorded(net, job, use, commit=False)
    link = net.topology.index["node0/gpu0->node0/nvswitch"]
    assert link in use.used().tolist()
    assert len(use.used()) == 2
    assert use.curve(link).sum() == pytest.approx(1 << 28, rel=1e-6)
    assert use.bin_ps == FIRST_BIN_PS
    full = use.curve(link)[1:-1] / (use.bin_ps * 1e-12)
    assert (full <= net.topology.capacity[link] * (1 + 1e-9)).all()
    assert full.min() > 0


def test_a_long_operation_that_began_first_and_ended_last_is_there_from_its_begin() -> None:
    net = network("rails")
    use = LinkUse(len(net.topology.links))
    job = [
        Start(1, 0, Operation(kind="p2p", source=0, destination=1, size_bytes=1 << 30)),
        Start(2, 900_000_000, Operation(kind="p2p", source=2, destination=3, size_bytes=1 << 12)),
    ]
    recorded(net, job, use, commit=True)
    assert use.begin_ps < 100_000_000
    assert use.curve(net.topology.index["node0/gpu0->node0/nvswitch"]).sum() == pytest.approx(
        1 << 30, rel=1e-6
    )
