"""The bus bandwidth of what the network carries never exceeds what the links allow."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from netsim.cluster import list_presets, load_cluster
from netsim.nccl.constants import ALGORITHMS
from netsim.network import Network
from netsim.operation import Operation, bus_factor, even_size_bytes
from phantom.engine.statistics import Statistics
from phantom.results.limits import (
    IN_SWITCH_ALGORITHMS,
    Placement,
    bus_limit_bytes_per_s,
    uneven_limit_bytes_per_s,
)
from phantom.results.summary import collective_totals

KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "reduce", "p2p")


def test_algorithms_that_reduce_in_the_switch_are_called_as_in_netsim() -> None:
    assert set(IN_SWITCH_ALGORITHMS) < set(ALGORITHMS)


@settings(max_examples=120, deadline=None)
@example(cluster="h100-aws-p5", kind="all_reduce", size=1 << 32, nodes=2, stride=1)  # NVLS trees
@given(
    cluster=st.sampled_from(list_presets()),
    kind=st.sampled_from(KINDS),
    size=st.sampled_from([1 << 12, 1 << 20, 1 << 26, 1 << 32]),
    nodes=st.integers(1, 4),
    stride=st.sampled_from([1, 2, 8]),
)
def test_bus_bandwidth_stays_below_the_link(
    cluster: str, kind: str, size: int, nodes: int, stride: int
) -> None:
    spec = load_cluster(cluster)
    gpus = spec.node.gpus
    if spec.fabric.kind == "none":
        nodes = 1
    network = Network(spec, nodes=nodes, gpus_per_node=gpus, environment={}, seed=0)
    ranks = tuple(range(0, nodes * gpus, stride))
    if len(ranks) < 2:
        return
    operation = Operation(
        kind=kind, ranks=ranks, size_bytes=size, root=0, source=ranks[0], destination=ranks[-1]
    )
    choice = network.describe(operation)
    network.start(1, operation, 0)
    ((_, end_ps),) = network.advance(1 << 62)
    limit = bus_limit_bytes_per_s(spec, operation, choice.algorithm, gpus_per_node=gpus)
    if spec.gpu.is_cpu:  # Gloo: between memories, no link
        assert limit is None
        return
    assert limit is not None
    assert size * choice.bus_factor / (end_ps * 1e-12) <= limit * (1 + 1e-9)


def test_limits_of_a_dgx() -> None:
    spec = load_cluster("h100-dgx")
    eight, two_nodes = tuple(range(8)), tuple(range(16))

    def limit(kind: str, ranks: tuple[int, ...], algorithm: str = "ring") -> float | None:
        operation = Operation(kind=kind, ranks=ranks, size_bytes=1, source=0, destination=ranks[-1])
        return bus_limit_bytes_per_s(spec, operation, algorithm, gpus_per_node=8)

    assert limit("all_reduce", eight) == 450e9
    assert limit("all_reduce", eight, "nvls") == pytest.approx(450e9 * 14 / 8)
    assert limit("all_gather", two_nodes) == 450e9  # 8 x 50 GB/s x (15/16) / (1/2) is more than NVLink
    assert limit("all_reduce", (0, 8)) == pytest.approx(400e9)
    assert limit("barrier", eight) is None
    assert limit("all_reduce", (3,)) is None
    # One message leaves by the sender's own NIC.
    assert limit("p2p", two_nodes) == 50e9


@settings(max_examples=80, deadline=None)
@given(
    cluster=st.sampled_from(["h100-dgx", "a100-dgx"]),
    nodes=st.integers(1, 3),
    stride=st.sampled_from([2, 4]),
    data=st.data(),
)
def test_bus_bandwidth_of_an_uneven_all_to_all_stays_below_the_link(
    cluster: str, nodes: int, stride: int, data: st.DataObject
) -> None:
    """However much a rank keeps for itself, or sends to one peer or to one node alone."""
    spec = load_cluster(cluster)
    ranks = tuple(range(0, 8 * nodes, stride))
    sizes = st.sampled_from([0, 0, 1 << 10, 1 << 20, 1 << 28])
    row = st.tuples(*[sizes] * len(ranks))
    counts = data.draw(st.tuples(*[row] * len(ranks)))
    size_bytes = even_size_bytes(counts)
    operation = Operation(kind="all_to_all", ranks=ranks, size_bytes=size_bytes, send_counts=counts)
    limit = uneven_limit_bytes_per_s(spec, {operation: 1}, gpus_per_node=8)
    exchanged = any(size for i, row in enumerate(counts) for j, size in enumerate(row) if i != j)
    assert (limit is not None) == exchanged == (size_bytes > 0)
    if limit is None:
        return
    network = Network(spec, nodes=nodes, gpus_per_node=8, environment={}, seed=0)
    network.start(1, operation, 0)
    ((_, end_ps),) = network.advance(1 << 62)
    assert size_bytes * bus_factor("all_to_all", len(ranks)) / (end_ps * 1e-12) <= limit * (1 + 1e-9)


def test_an_even_all_to_all_given_by_its_counts_is_the_even_one() -> None:
    spec = load_cluster("h100-dgx")
    for ranks in (tuple(range(8)), tuple(range(16)), (0, 8)):
        counts = tuple((1 << 20,) * len(ranks) for _ in ranks)
        size_bytes = even_size_bytes(counts)
        assert size_bytes == len(ranks) << 20
        by_counts = Operation(kind="all_to_all", ranks=ranks, size_bytes=size_bytes, send_counts=counts)
        even = Operation(kind="all_to_all", ranks=ranks, size_bytes=size_bytes)
        assert uneven_limit_bytes_per_s(spec, {by_counts: 3}, gpus_per_node=8) == pytest.approx(
            bus_limit_bytes_per_s(spec, even, "send_recv", gpus_per_node=8)
        )
    assert even_size_bytes(((7,),)) == 7


def test_groups_of_one_size_on_other_links_have_rows_of_their_own() -> None:
    """A message inside a node is faster than one between nodes; their mean would pass the NIC's limit."""
    spec = load_cluster("h100-dgx")
    statistics = Statistics(16)
    statistics.placement = Placement(spec, 8)
    for source, destination in [(0, 1), (2, 3), (0, 8), (8, 9)]:
        ends = {"ranks": (source, destination), "source": source, "destination": destination}
        operation = Operation(kind="p2p", size_bytes=1 << 26, **ends)
        network = Network(spec, nodes=2, gpus_per_node=8, environment={}, seed=0)
        network.start(1, operation, 0)
        ((_, end_ps),) = network.advance(1 << 62)
        statistics.add("p2p", operation, end_ps)
    rows = {row["nodes"]: row for row in collective_totals(statistics, network)}
    assert {nodes: row["count"] for nodes, row in rows.items()} == {1: 3, 2: 1}
    assert rows[1]["bus_limit_bytes_per_s"] == 450e9
    assert rows[2]["bus_limit_bytes_per_s"] == 50e9
    assert all(row["bus_bandwidth_bytes_per_s"] <= row["bus_limit_bytes_per_s"] for row in rows.values())
    assert rows[1]["bus_bandwidth_bytes_per_s"] > 50e9
