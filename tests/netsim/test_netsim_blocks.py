"""History of single flows: instants, rollback and trimming."""

from __future__ import annotations

import numpy as np
import pytest

from netsim.cluster import load_cluster
from netsim.network import Network
from netsim.operation import Operation
from netsim.parts import Part, Shape
from netsim.sharing.blocks import Flight, ManyBlock, SingleBlock

LEVEL = np.array([2.0])


def single() -> SingleBlock:
    shape = Shape.single({0: 1.0}, weight=1.0, cap=10.0)
    return SingleBlock(Flight(1, 0), 0, Part(0, shape, np.array([100.0])), shape)


def test_what_is_assigned_last_at_an_instant_counts() -> None:
    once, twice = single(), single()
    for block in (once, twice):
        block.assign(0, LEVEL)
    once.assign(10**12, np.array([4.0]))
    twice.assign(10**12, np.array([7.0]))
    twice.assign(10**12, np.array([4.0]))
    assert once.history == twice.history == [(0, 100.0, 2.0), (10**12, 98.0, 4.0)]
    assert once.next_ps == twice.next_ps == 10**12 + round(98 / 4 * 10**12)


def test_a_change_undone_at_the_same_instant_leaves_no_trace() -> None:
    block = single()
    block.assign(0, LEVEL)
    block.assign(10**12, np.array([7.0]))
    block.assign(10**12, LEVEL)
    assert block.history == [(0, 100.0, 2.0)]


def test_many_flows_follow_the_same_rules() -> None:
    shape = Shape.many([{0: 1.0}, {1: 1.0}], weights=[1.0, 1.0], caps=[9.0, 9.0])
    block = ManyBlock(Flight(1, 0), 0, Part(0, shape, np.array([100.0, 2.0])), shape)
    block.assign(0, np.array([2.0, 2.0]))
    assert block.next_ps == 10**12
    assert not block.finish(10**12)
    block.assign(10**12, np.array([5.0, 0.0]))
    block.assign(10**12, np.array([4.0, 0.0]))
    assert len(block.history) == 2
    assert block.history[-1][1].tolist() == [98.0, 0.0]
    block.rollback(5 * 10**11)
    assert block.open.all()
    assert block.next_ps == 10**12


def test_trimmed_history_still_allows_rollback_to_the_horizon() -> None:
    def job(net: Network, first: int) -> None:
        for op_id, start_ps, peer in (
            (1, 0, 8),
            (2, 100_000_000, 16),
            (3, 400_000_000, 16),
            (4, 900_000_000, 16),
        ):
            if op_id >= first:
                size = 1 << 26 if op_id == 1 else 1 << 20
                op = Operation(kind="p2p", source=0, destination=peer, size_bytes=size)
                net.start(op_id, op, start_ps)

    def fresh() -> Network:
        return Network(load_cluster("h100-dgx"), nodes=3, gpus_per_node=8, environment={}, seed=0)

    net = fresh()
    job(net, 1)
    expected = net.advance(10**12)
    net = fresh()
    job(net, 1)
    done = net.advance(300_000_000)
    net.commit(300_000_000)
    net.advance(10**12)
    net.rollback(300_000_000)
    job(net, 3)
    assert done + net.advance(10**12) == expected
    with pytest.raises(ValueError, match="committed"):
        net.rollback(299_999_999)
