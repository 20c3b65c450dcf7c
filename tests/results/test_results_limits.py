"""The bus bandwidth of what the network carries never exceeds what the links allow."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from netsim.cluster import list_presets, load_cluster
from netsim.network import Network
from netsim.operation import Operation
from phantom.results.limits import bus_limit_bytes_per_s

KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "reduce", "p2p")


@settings(max_examples=120, deadline=None)
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
