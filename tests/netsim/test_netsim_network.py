"""The network as the engine sees it."""

from __future__ import annotations

import gc

import pytest

from netsim.cluster import load_cluster, parse_cluster
from netsim.errors import OperationError
from netsim.network import Network
from netsim.operation import COLLECTIVE_KINDS, Operation


def network(name: str = "h100-dgx", nodes: int = 2, gpus: int = 8, **environment: str) -> Network:
    return Network(load_cluster(name), nodes=nodes, gpus_per_node=gpus, environment=environment, seed=0)


def all_reduce(ranks: range | tuple[int, ...], size: int) -> Operation:
    return Operation(kind="all_reduce", ranks=tuple(ranks), size_bytes=size)


def test_single_collective_takes_start_up_plus_transfer() -> None:
    net = network()
    op = all_reduce(range(16), 1 << 27)
    net.start(1, op, 1000)
    ((op_id, end_ps),) = net.advance(10**12)
    assert op_id == 1
    assert end_ps - 1000 == pytest.approx(net.describe(op).estimate_s * 1e12, rel=1e-9)
    assert net.next_event_ps() is None


def test_two_equal_messages_share_a_nic() -> None:
    net = network(nodes=3)
    alone = Operation(kind="p2p", source=0, destination=8, size_bytes=1 << 28)
    net.start(1, alone, 0)
    ((_, end_alone),) = net.advance(10**12)
    net = network(nodes=3)
    net.start(1, alone, 0)
    net.start(2, Operation(kind="p2p", source=0, destination=16, size_bytes=1 << 28), 0)
    ends = dict(net.advance(10**12))
    assert ends[1] == ends[2]
    start_up_ps = net.planner.plan(alone)[0].latency_ps
    # One message alone reaches a part of its NIC's rate; two fill it.
    share = 2 * net.cluster.nccl.p2p_inter_efficiency
    assert share > 1
    assert ends[1] - start_up_ps == pytest.approx(share * (end_alone - start_up_ps), rel=1e-9)


def test_disjoint_groups_do_not_disturb_each_other() -> None:
    net = network()
    net.start(1, all_reduce(range(8), 1 << 26), 0)
    ((_, alone),) = net.advance(10**12)
    net = network()
    net.start(1, all_reduce(range(8), 1 << 26), 0)
    net.start(2, all_reduce(range(8, 16), 1 << 26), 0)
    assert net.advance(10**12) == [(1, alone), (2, alone)]


def test_completions_are_ordered_and_start_in_the_past_is_refused() -> None:
    net = network()
    net.start(5, all_reduce(range(8), 1 << 26), 0)
    net.start(2, all_reduce(range(8, 16), 1 << 26), 0)
    assert [op for op, _ in net.advance(10**12)] == [2, 5]
    with pytest.raises(ValueError, match="is at"):
        net.start(3, all_reduce(range(8), 1), 5)


def test_group_of_one_and_empty_messages_end() -> None:
    net = network()
    net.start(1, all_reduce((3,), 1 << 20), 0)
    net.start(2, Operation(kind="all_to_all", ranks=tuple(range(8)), size_bytes=0), 0)
    net.start(3, Operation(kind="barrier", ranks=tuple(range(16))), 0)
    net.start(4, Operation(kind="p2p", source=0, destination=1, size_bytes=0), 0)
    assert {op for op, _ in net.advance(10**12)} == {1, 2, 3, 4}


@pytest.mark.parametrize("kind", COLLECTIVE_KINDS)
@pytest.mark.parametrize(
    "cluster", ["h100-dgx", "a100-pcie", "rtx4090-box", "v100-dgx", "gb200-nvl72", "cpu-loopback"]
)
def test_every_collective_on_every_kind_of_server(kind: str, cluster: str) -> None:
    spec = load_cluster(cluster)
    net = Network(spec, nodes=2, gpus_per_node=4, environment={}, seed=0)
    small = Operation(kind=kind, ranks=tuple(range(8)), size_bytes=1 << 12, root=1)
    large = Operation(kind=kind, ranks=tuple(range(8)), size_bytes=1 << 28, root=1)
    assert 0 < net.describe(small).estimate_s <= net.describe(large).estimate_s < 10


def test_failed_link_is_reported_or_routed_around() -> None:
    base = {"name": "x", "base": "h100-dgx"}
    around = parse_cluster({**base, "degrade": {"links": {"node0/nic3": 0.0}}}, file="t")
    net = Network(around, nodes=2, gpus_per_node=8, environment={}, seed=0)
    op = all_reduce(range(16), 1 << 30)
    assert net.describe(op).estimate_s > 1.2 * network().describe(op).estimate_s
    dead = parse_cluster({**base, "degrade": {"links": {"node0/nic*": 0.0}}}, file="t")
    net = Network(dead, nodes=2, gpus_per_node=8, environment={}, seed=0)
    with pytest.raises(OperationError, match="every NIC of node0"):
        net.start(1, op, 0)


def test_rollback_replays_to_the_same_end() -> None:
    net = network()
    net.start(1, all_reduce(range(16), 1 << 27), 0)
    net.start(2, Operation(kind="p2p", source=0, destination=8, size_bytes=1 << 26), 5)
    first = net.advance(10**12)
    net.rollback(400_000_000)
    assert net.advance(10**12) == [c for c in first if c[1] > 400_000_000]
    net.rollback(3)
    net.start(2, Operation(kind="p2p", source=0, destination=8, size_bytes=1 << 26), 5)
    assert net.advance(10**12) == first
    net.commit(10**12)
    with pytest.raises(ValueError, match="committed"):
        net.rollback(10)


def test_caches_do_not_grow_without_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("netsim.nccl.collectives.PLAN_ENTRIES", 2_000)
    monkeypatch.setattr("netsim.sharing.active.MEMO_FLOWS", 200)
    net = network()
    for i in range(300):
        net.start(i, all_reduce(range(16), (1 << 20) + 4 * i), i * 10**12)
        net.start(1000 + i, all_reduce(range(8), (1 << 20) + 4 * i), i * 10**12)
        net.advance(i * 10**12 + 10**11)
        net.commit(i * 10**12 + 10**11)
    gc.collect()  # weakly known classes that form cycles stay until then
    assert len(net.planner._plans) < 40
    assert len(net._sharing._memo) < 20
    assert len(net._sharing._known) < 60
    assert not net._open
    assert not net._finished


def test_a_longer_path_between_servers_takes_longer() -> None:
    def start_up(hop_latency_s: float) -> int:
        fabric = {"nodes_per_leaf": 1, "hop_latency_s": hop_latency_s}
        spec = parse_cluster({"name": "x", "base": "h100-dgx", "fabric": fabric}, file="t")
        net = Network(spec, nodes=4, gpus_per_node=8, environment={"NCCL_ALGO": "Ring"}, seed=0)
        return net.planner.plan(all_reduce(range(32), 1 << 20))[0].latency_ps

    # Up and down twice as far on each of the ring's 2 (4 - 1) crossings.
    assert start_up(5e-6) - start_up(1e-6) == 6 * 2 * 4_000_000


@pytest.mark.parametrize("kind", [*COLLECTIVE_KINDS, "p2p"])
def test_gloo_runs_among_hosts(kind: str) -> None:
    net = network()

    def time_s(size: int) -> float:
        op = Operation(
            kind=kind, ranks=tuple(range(16)), size_bytes=size, source=0, destination=9, backend="gloo"
        )
        return net.describe(op).estimate_s

    assert 40e-6 < time_s(0) < 2e-3
    if kind != "barrier":
        assert time_s(1 << 28) > 10 * time_s(1 << 20)
