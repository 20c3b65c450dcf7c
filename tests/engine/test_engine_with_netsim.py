"""The engine on the real network: any order of messages, running ahead or not, gives the same picoseconds."""

from __future__ import annotations

from typing import Any

from engine_jobs import drive, make_programs
from hypothesis import given, settings
from hypothesis import strategies as st

from netsim.cluster import ClusterSpec, load_cluster
from netsim.network import Network

CLUSTER: ClusterSpec = load_cluster("h100-dgx")


def network(world: int) -> Any:
    """Two GPUs per node, so that groups cross the fabric."""
    return Network(CLUSTER, nodes=-(-world // 2), gpus_per_node=2, environment={}, seed=0)


@settings(max_examples=40, deadline=None)
@given(
    job=st.integers(0, 10**6),
    world=st.integers(2, 5),
    scale=st.sampled_from([1, 1000, 100_000]),
    orders=st.lists(st.integers(0, 10**6), min_size=2, max_size=3),
)
def test_orders_and_modes_agree_on_netsim(job: int, world: int, scale: int, orders: list[int]) -> None:
    programs = make_programs(job, world, 20, scale=scale)
    first = None
    for order in orders:
        for lookahead in (False, True):
            outcome = drive(programs, network(world), seed=order, lookahead=lookahead)
            result = (outcome.ends, outcome.answers, outcome.steps)
            first = first or result
            assert result == first


def test_netsim_is_rolled_back_somewhere() -> None:
    rollbacks = 0
    for job in range(10):
        outcome = drive(make_programs(job, 4, 20, scale=100_000), network(4), seed=job, lookahead=True)
        assert outcome.engine is not None
        rollbacks += outcome.engine.scheduler_counts["undone_events"]
    assert rollbacks > 10
