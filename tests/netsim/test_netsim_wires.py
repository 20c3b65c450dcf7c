"""NVLink wires between two GPUs: a mesh of all pairs, and bridged pairs in a PCIe box."""

from __future__ import annotations

from typing import Any

import pytest

from netsim.cluster import ClusterSpec, load_cluster, parse_cluster
from netsim.network import Network
from netsim.operation import Operation
from phantom.results.limits import bus_limit_bytes_per_s

GIB = 1 << 30
LINK = 25e9


def cluster(kind: str, **nvlink: Any) -> ClusterSpec:
    return parse_cluster(
        {
            "name": "t",
            "gpu": {"preset": "a100-sxm-80gb" if kind == "mesh" else "a100-pcie-80gb"},
            "node": {
                "gpus": 4,
                "sockets": 1,
                "nvlink": {"kind": kind, "links": 12, "link_bandwidth_bytes_per_s": LINK, **nvlink},
            },
        },
        file="t",
    )


def bus_bytes_per_s(spec: ClusterSpec, op: Operation) -> float:
    choice = Network(spec, nodes=1, gpus_per_node=4, environment={}, seed=0).describe(op)
    rate = op.size_bytes * choice.bus_factor / choice.estimate_s
    limit = bus_limit_bytes_per_s(spec, op, choice.algorithm, gpus_per_node=4)
    assert limit is not None
    assert rate < limit
    return rate


def test_a_message_in_a_mesh_has_the_wires_of_its_pair() -> None:
    # Measured: 72 GB/s of 100 between two of four A100 with 4 links per pair (Leonardo).
    message = Operation(kind="p2p", source=0, destination=3, size_bytes=GIB)
    assert bus_bytes_per_s(cluster("mesh"), message) == pytest.approx(72e9, rel=0.2)


@pytest.mark.parametrize("kind", ["all_reduce", "all_gather", "all_to_all"])
def test_a_group_in_a_mesh_has_the_wires_between_its_members(kind: str) -> None:
    spec = cluster("mesh")
    two = bus_bytes_per_s(spec, Operation(kind=kind, ranks=(1, 2), size_bytes=GIB))
    four = bus_bytes_per_s(spec, Operation(kind=kind, ranks=(0, 1, 2, 3), size_bytes=GIB))
    assert 45e9 < two < 4 * LINK
    assert 0.6 * 12 * LINK < four < 12 * LINK


def test_two_messages_of_a_gpu_in_a_mesh_do_not_meet() -> None:
    net = Network(cluster("mesh"), nodes=1, gpus_per_node=4, environment={}, seed=0)
    alone = net.describe(Operation(kind="p2p", source=0, destination=1, size_bytes=GIB)).estimate_s
    for peer in (1, 2, 3):
        net.start(peer, Operation(kind="p2p", source=0, destination=peer, size_bytes=GIB), 0)
    assert [end * 1e-12 for _, end in net.advance(10**13)] == pytest.approx([alone] * 3, rel=1e-6)


def test_bridged_pairs_are_fast_and_the_others_go_over_pcie() -> None:
    spec = cluster("pairs")
    bridged = bus_bytes_per_s(spec, Operation(kind="p2p", source=2, destination=3, size_bytes=GIB))
    apart = bus_bytes_per_s(spec, Operation(kind="p2p", source=1, destination=2, size_bytes=GIB))
    assert bridged > 0.7 * 12 * LINK
    assert apart < 25e9
    # A ring through both pairs is as slow as PCIe: 112 MiB on four bridged A100 took 7,609 us (vidur).
    ring = Operation(kind="all_reduce", ranks=(0, 1, 2, 3), size_bytes=117_964_800)
    seconds = 1.5 * ring.size_bytes / bus_bytes_per_s(spec, ring)
    assert seconds == pytest.approx(7609e-6, rel=0.15)


def test_copies_through_host_memory_bound_a_message() -> None:
    spec = load_cluster("rtx4090-box")
    op = Operation(kind="p2p", source=0, destination=1, size_bytes=GIB)
    seconds = Network(spec, nodes=1, gpus_per_node=8, environment={}, seed=0).describe(op).estimate_s
    assert 0.9 * spec.node.pcie.p2p_bandwidth_bytes_per_s < GIB / seconds
    assert GIB / seconds <= spec.node.pcie.p2p_bandwidth_bytes_per_s
