"""Balanced all_to_alls: loads counted by class against the sum over all pairs."""

from __future__ import annotations

from typing import Any

import pytest

from netsim.cluster import parse_cluster
from netsim.fabric.balanced import balanced_between
from netsim.fabric.topology import Topology

CASES: list[tuple[dict[str, Any], tuple[int, ...]]] = [
    ({"base": "h100-dgx", "fabric": {"nodes_per_leaf": 2}}, tuple(range(32))),
    ({"base": "h100-dgx", "fabric": {"nodes_per_leaf": 2}}, tuple(range(1, 32, 3))),
    ({"base": "h100-dgx", "nccl": {"pxn": False}}, tuple(range(32))),
    ({"base": "h100-dgx", "degrade": {"links": {"node1/nic3": 0.0}}}, tuple(range(32))),
    ({"base": "v100-dgx"}, tuple(range(32))),
    ({"base": "a100-pcie"}, tuple(range(0, 32, 2))),
    ({"base": "rtx4090-box"}, tuple(range(32))),
    ({"base": "gb200-nvl72", "node": {"nvlink": {"domain_nodes": 2}}}, tuple(range(16))),
    ({"base": "h100-dgx", "node": {"nics": 16}}, tuple(range(24))),
]


@pytest.mark.parametrize(("data", "ranks"), CASES)
def test_same_as_all_pairs(data: dict[str, Any], ranks: tuple[int, ...]) -> None:
    spec = parse_cluster({"name": "t", **data}, file="t")
    topology = Topology(spec, nodes=4, gpus_per_node=spec.node.gpus)
    pxn = spec.nccl.pxn
    domains: dict[int, list[int]] = {}
    for rank in ranks:
        domains.setdefault(topology.domain_of(rank), []).append(rank)
    expected: dict[int, float] = {}
    for a in ranks:
        for b in ranks:
            if topology.domain_of(a) != topology.domain_of(b):
                for link, share in topology.path(a, b, pxn=pxn):
                    expected[link] = expected.get(link, 0.0) + share
    found = balanced_between(topology, list(domains.values()), pxn=pxn, seed=0)
    assert {topology.links[i].name: v for i, v in found.items()} == pytest.approx(
        {topology.links[i].name: v for i, v in expected.items()}
    )
