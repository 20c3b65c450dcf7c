"""Sharing, over-subscription and faults against computation by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from netsim.cluster import parse_cluster
from netsim.errors import OperationError
from netsim.network import Network
from netsim.operation import Operation

NIC = 40e9
MIB = 1 << 20


def build(fabric: dict[str, Any], *, nodes: int = 4, gpus: int = 8, nics: int = 8, **tables: Any) -> Network:
    spec = parse_cluster(
        {
            "name": "t",
            "gpu": {"preset": "h100-sxm"},
            "node": {
                "gpus": gpus,
                "nics": nics,
                "nic_bandwidth_bytes_per_s": NIC,
                "nic_efficiency": 1.0,
                "nvlink": {"kind": "switch", "links": 18, "link_bandwidth_bytes_per_s": 25e9},
                "pcie": {"generation": 5},
            },
            "fabric": fabric,
            # A message may fill its NIC, so that the wires decide.
            "nccl": {"p2p_inter_efficiency": 1.0},
        }
        | tables,
        file="t",
    )
    return Network(spec, nodes=nodes, gpus_per_node=gpus, environment={"NCCL_ALGO": "Ring"}, seed=0)


def transfer_s(net: Network, ops: list[Operation]) -> list[float]:
    """Each operation's time less its start-up, all started at 0."""
    for i, op in enumerate(ops):
        net.start(i, op, 0)
    ends = dict(net.advance(10**14))
    return [(ends[i] - max(p.latency_ps for p in net.planner.plan(op))) * 1e-12 for i, op in enumerate(ops)]


def all_reduce(ranks: tuple[int, ...], size: int) -> Operation:
    return Operation(kind="all_reduce", ranks=ranks, size_bytes=size)


def message(source: int, destination: int, size: int) -> Operation:
    return Operation(kind="p2p", source=source, destination=destination, size_bytes=size)


def test_two_data_parallel_jobs_share_a_leaf_uplink() -> None:
    """Leaves of one server with one uplink of half the NICs' rate: two rings over GPUs 0 and 1 share it."""
    fabric = {"kind": "fat-tree", "nodes_per_leaf": 1, "spines": 1, "oversubscription": 8.0}
    size = 512 * MIB
    first, second = all_reduce((0, 8), size), all_reduce((1, 9), size)
    uplink = 8 * NIC / 8.0  # one NIC's worth for the whole server
    (alone,) = transfer_s(build(fabric), [first])
    both = transfer_s(build(fabric), [first, second])
    # A ring of two sends 2 (n - 1) / n = 1 times the buffer each way.
    assert alone == pytest.approx(size / uplink, rel=1e-6)
    assert both == pytest.approx([2 * size / uplink] * 2, rel=1e-3)


def test_the_share_left_by_a_short_job_is_taken_up() -> None:
    """A and B share the uplink until A's 64 MiB are through; B then has it alone."""
    fabric = {"kind": "fat-tree", "nodes_per_leaf": 1, "spines": 1, "oversubscription": 8.0}
    times = transfer_s(build(fabric), [message(0, 8, 64 * MIB), message(1, 9, 192 * MIB)])
    assert times == pytest.approx([2 * 64 * MIB / NIC, (2 * 64 + 128) * MIB / NIC], rel=1e-6)


def test_an_over_subscribed_spine_shows() -> None:
    op = all_reduce(tuple(range(32)), 1024 * MIB)
    flat = {"kind": "fat-tree", "nodes_per_leaf": 1, "spines": 4}
    (fast,) = transfer_s(build(flat), [op])
    (slow,) = transfer_s(build(flat | {"oversubscription": 4.0}), [op])
    bus_bytes = 2 * 31 / 32 * 1024 * MIB
    assert fast == pytest.approx(bus_bytes / (8 * NIC), rel=0.1)
    assert slow == pytest.approx(bus_bytes / (8 * NIC / 4.0), rel=1e-6)


def test_rails_keep_a_ring_off_the_spine() -> None:
    """With rails and one leaf group, data-parallel rings never leave their leaf."""
    op = all_reduce(tuple(range(3, 32, 8)), 512 * MIB)
    rails = {"kind": "rail-fat-tree", "nodes_per_leaf": 4, "spines": 2, "oversubscription": 100.0}
    tree = {"kind": "fat-tree", "nodes_per_leaf": 1, "spines": 2, "oversubscription": 100.0}
    (fast,) = transfer_s(build(rails), [op])
    (slow,) = transfer_s(build(tree), [op])
    assert fast == pytest.approx(1.5 * 512 * MIB / NIC, rel=0.1)
    assert slow == pytest.approx(1.5 * 512 * MIB / (8 * NIC / 100), rel=1e-6)


def test_all_to_all_is_bound_by_the_nics() -> None:
    op = Operation(kind="all_to_all", ranks=tuple(range(32)), size_bytes=256 * MIB)
    (time,) = transfer_s(build({"kind": "rail-fat-tree", "nodes_per_leaf": 4}), [op])
    # 24 of 32 pieces leave the server, each GPU's by one NIC; PXN puts them on the destination's rail.
    assert time == pytest.approx(256 * MIB * 24 / 32 / NIC, rel=1e-6)


def test_uneven_all_to_all_ends_with_its_largest_pair() -> None:
    counts = [[0] * 8 for _ in range(8)]
    counts[0][7] = 80 * MIB
    counts[1][2] = MIB
    op = Operation(
        kind="all_to_all",
        ranks=tuple(range(0, 8)),
        size_bytes=80 * MIB,
        send_counts=tuple(map(tuple, counts)),
    )
    counts[1][2] = 0
    largest = replace(op, send_counts=tuple(map(tuple, counts)))
    (time,) = transfer_s(build({"kind": "single-switch"}, nodes=1), [op])
    (alone,) = transfer_s(build({"kind": "single-switch"}, nodes=1), [largest])
    assert time == pytest.approx(alone, rel=1e-6)
    assert time > 80 * MIB / (18 * 25e9 * 0.82)


def test_spray_uses_all_spines_and_ecmp_one() -> None:
    fabric = {"kind": "fat-tree", "nodes_per_leaf": 1, "spines": 4, "oversubscription": 2.0}
    op = message(0, 8, 64 * MIB)
    (sprayed,) = transfer_s(build(fabric), [op])
    (hashed,) = transfer_s(build(fabric | {"routing": "ecmp", "oversubscription": 16.0}), [op])
    assert sprayed == pytest.approx(64 * MIB / NIC, rel=1e-6)
    # One of four uplinks, each a quarter of 8 NICs / 16.
    assert hashed == pytest.approx(64 * MIB / (8 * NIC / 16 / 4), rel=1e-6)


def test_ecmp_collides_for_some_flows() -> None:
    fabric = {"kind": "fat-tree", "nodes_per_leaf": 1, "spines": 8, "routing": "ecmp"}
    times = transfer_s(build(fabric), [message(g, 8 + g, 64 * MIB) for g in range(8)])
    assert max(times) == pytest.approx(round(max(times) / min(times)) * min(times), rel=0.2)
    assert max(times) > 1.5 * min(times)


def test_a_failed_rail_is_routed_around() -> None:
    fabric = {"kind": "rail-fat-tree", "nodes_per_leaf": 4}
    op = all_reduce(tuple(range(32)), 1024 * MIB)
    (good,) = transfer_s(build(fabric), [op])
    (cut,) = transfer_s(build(fabric, degrade={"links": {"leaf3.0": 0.0}}), [op])
    # Eight rails' channels over seven: GPU 3's share goes to a neighbour's NIC, which then has two.
    assert cut == pytest.approx(good * 8 / 7, rel=0.15)
    lone = message(3, 11, 64 * MIB)
    (time,) = transfer_s(build(fabric, degrade={"links": {"leaf3.0": 0.0}}), [lone])
    assert time == pytest.approx(64 * MIB / NIC, rel=1e-6)


def test_a_slow_link_slows_the_ring_that_crosses_it() -> None:
    fabric = {"kind": "rail-fat-tree", "nodes_per_leaf": 4}
    op = all_reduce(tuple(range(0, 32, 8)), 512 * MIB)
    other = all_reduce(tuple(range(1, 32, 8)), 512 * MIB)
    net = build(fabric, degrade={"links": {"node2/nic0->leaf0.0": 0.25}})
    slow, fast = transfer_s(net, [op, other])
    assert slow == pytest.approx(1.5 * 512 * MIB / (NIC / 4), rel=1e-6)
    assert fast == pytest.approx(1.5 * 512 * MIB / NIC, rel=0.1)


def test_no_way_left_is_an_error_that_names_the_link() -> None:
    fabric = {"kind": "fat-tree", "nodes_per_leaf": 1, "spines": 2}
    net = build(fabric, degrade={"links": {"leaf0->spine*": 0.0}})
    with pytest.raises(OperationError, match=r"leaf0->spines"):
        net.start(1, message(0, 8, MIB), 0)
    net = build(fabric, degrade={"links": {"node0/gpu0<->node0/nvswitch": 0.0}})
    with pytest.raises(OperationError, match=r"node0/gpu0->node0/nvswitch has failed"):
        net.start(1, message(0, 1, MIB), 0)


def test_background_traffic_takes_its_share() -> None:
    flow = {"source": 0, "destination": 8, "bandwidth_bytes_per_s": NIC / 4}
    net = build({"kind": "rail-fat-tree", "nodes_per_leaf": 4}, degrade={"background": [flow]})
    (time,) = transfer_s(net, [message(0, 16, 64 * MIB)])
    assert time == pytest.approx(64 * MIB / (NIC * 3 / 4), rel=1e-6)
    assert net.next_event_ps() is None


def test_host_copies_share_pcie() -> None:
    def copy(rank: int, direction: str = "h2d", pinned: bool = True) -> Operation:
        return Operation(
            kind="transfer", ranks=(rank,), direction=direction, size_bytes=512 * MIB, pinned=pinned
        )

    alone = transfer_s(build({"kind": "single-switch"}), [copy(0)])
    assert alone == pytest.approx([512 * MIB / 55e9])
    pair = transfer_s(build({"kind": "single-switch"}), [copy(0), copy(1)])  # one PCIe switch
    assert pair == pytest.approx([2 * alone[0]] * 2)
    apart = transfer_s(build({"kind": "single-switch"}), [copy(0), copy(2), copy(0, "d2h")])
    assert apart == pytest.approx(alone * 3)
    pageable = transfer_s(build({"kind": "single-switch"}), [copy(0, pinned=False)])
    assert pageable[0] > 5 * alone[0]


@pytest.mark.parametrize(
    ("fabric", "nodes"),
    [
        ({"kind": "single-switch"}, 4),
        ({"kind": "torus", "dimensions": [2, 2]}, 4),
        ({"kind": "torus", "dimensions": [3, 3]}, 9),
        ({"kind": "direct-connect"}, 4),
        ({"kind": "direct-connect", "routing": "ecmp"}, 4),
    ],
)
def test_other_fabrics_carry_a_ring(fabric: dict[str, Any], nodes: int) -> None:
    op = all_reduce(tuple(range(nodes * 8)), 1024 * MIB)
    (time,) = transfer_s(build(fabric, nodes=nodes), [op])
    bus_bytes = 2 * (nodes * 8 - 1) / (nodes * 8) * 1024 * MIB
    assert bus_bytes / (8 * NIC) * 0.95 <= time <= bus_bytes / (8 * NIC) * 12


def test_direct_connect_neighbours_have_their_own_wire() -> None:
    net = build({"kind": "direct-connect"}, nodes=3)
    times = transfer_s(net, [message(0, 8, 64 * MIB), message(1, 16, 64 * MIB)])
    assert times == pytest.approx([64 * MIB / NIC] * 2, rel=1e-6)


def test_custom_graph_takes_shortest_paths() -> None:
    edge = {"bandwidth_bytes_per_s": 10e9}
    links = [{"ends": [f"node{n}/nic0", f"s{n}"], "bandwidth_bytes_per_s": NIC} for n in range(3)]
    links += [{"ends": ["s0", "s1"], **edge}, {"ends": ["s1", "s2"], **edge}]
    net = build({"kind": "graph", "links": links}, nodes=3, gpus=1, nics=1)
    times = transfer_s(net, [message(0, 2, 10 * MIB), message(0, 1, 10 * MIB)])
    # Both cross s0 - s1 and share it; the first then crosses s1 - s2 as well.
    assert times == pytest.approx([2 * 10 * MIB / 10e9] * 2, rel=1e-3)


def test_two_equal_paths_are_sprayed_or_hashed() -> None:
    edge = {"bandwidth_bytes_per_s": 10e9}
    links = [{"ends": [f"node{n}/nic0", f"s{n}"], "bandwidth_bytes_per_s": NIC} for n in range(2)]
    links += [{"ends": [f"s{n}", m], **edge} for n in range(2) for m in ("left", "right")]
    op = message(0, 1, 10 * MIB)
    (sprayed,) = transfer_s(build({"kind": "graph", "links": links}, nodes=2, gpus=1, nics=1), [op])
    hashed_net = build({"kind": "graph", "links": links, "routing": "ecmp"}, nodes=2, gpus=1, nics=1)
    (hashed,) = transfer_s(hashed_net, [op])
    assert sprayed == pytest.approx(10 * MIB / 20e9, rel=1e-6)
    assert hashed == pytest.approx(10 * MIB / 10e9, rel=1e-6)


def test_nvlink_contends() -> None:
    """A tensor-parallel ring and a message between two of its GPUs slow each other."""
    net = build({"kind": "single-switch"}, nodes=1)
    ring = all_reduce(tuple(range(8)), 512 * MIB)
    (alone,) = transfer_s(build({"kind": "single-switch"}, nodes=1), [ring])
    both = transfer_s(net, [ring, message(0, 1, 512 * MIB)])
    assert both[0] > 1.03 * alone  # the ring alone leaves a tenth of its links free
