"""Virtual times are the same whatever the order of messages, with and without look-ahead, and those of a
naive simulator that works strictly in order.
"""

from engine_client import Client
from engine_jobs import drive, make_programs
from engine_networks import FixedNetwork, ReplayNetwork, SharedNetwork
from engine_reference import Reference
from hypothesis import given, settings
from hypothesis import strategies as st

NETWORKS: list[type[ReplayNetwork]] = [FixedNetwork, SharedNetwork]


@settings(max_examples=60, deadline=None)
@given(
    job=st.integers(0, 10**6),
    world=st.integers(1, 4),
    length=st.integers(1, 24),
    order=st.integers(0, 10**6),
    network=st.sampled_from(NETWORKS),
)
def test_any_order_gives_the_reference_times(
    job: int, world: int, length: int, order: int, network: type[ReplayNetwork]
) -> None:
    programs = make_programs(job, world, length)
    clients = [Client(rank, world, program, simplify=False) for rank, program in enumerate(programs)]
    steps = Reference(clients, network()).run()
    for lookahead in (False, True):
        outcome = drive(programs, network(), seed=order, lookahead=lookahead, simplify=order % 2 == 0)
        assert outcome.answers == [client.answers for client in clients]
        assert outcome.now == [client.now for client in clients]
        assert outcome.steps == steps


@settings(max_examples=25, deadline=None)
@given(job=st.integers(0, 10**6), world=st.integers(2, 5), orders=st.lists(st.integers(0, 10**6), min_size=3))
def test_orders_and_modes_agree_on_every_operation(job: int, world: int, orders: list[int]) -> None:
    programs = make_programs(job, world, 20)
    first = None
    for order in orders[:4]:
        for lookahead in (False, True):
            outcome = drive(programs, SharedNetwork(), seed=order, lookahead=lookahead, simplify=False)
            result = (outcome.ends, outcome.answers, outcome.steps)
            first = first or result
            assert result == first


def test_lookahead_is_rolled_back_somewhere() -> None:
    # Guards the two tests above: they would prove nothing about rollback if none ever happened.
    rollbacks = 0
    for job in range(12):
        outcome = drive(make_programs(job, 4, 20), SharedNetwork(), seed=job, lookahead=True)
        assert outcome.engine is not None
        rollbacks += outcome.engine.scheduler_counts["rollbacks"]
    assert rollbacks > 10
