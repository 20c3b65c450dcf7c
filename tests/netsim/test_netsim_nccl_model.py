"""NCCL's tuning model against the values printed by NCCL and by public logs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from netsim.cluster import load_cluster
from netsim.errors import ClusterError
from netsim.nccl.search import Graph, GroupShape
from netsim.nccl.tuning import Environment, Pick, TuningModel

PAIRS = (
    ("tree", "ll"),
    ("tree", "ll128"),
    ("tree", "simple"),
    ("ring", "ll"),
    ("ring", "ll128"),
    ("ring", "simple"),
    ("nvls", "simple"),
    ("nvlstree", "simple"),
)

# Latency in us / bandwidth in GB/s of all_reduce as NCCL_DEBUG_SUBSYS=TUNING prints them, in the order of
# PAIRS.
ALL_REDUCE = {
    ("h100-dgx", 1): "15.2/37.0 31.5/109.5 64.4/140.8 15.0/80.6 40.6/189.3 56.0/205.7 25.0/272.0 -",
    ("h100-dgx", 2): "25.2/16.6 48.5/124.8 92.4/140.8 40.0/20.8 75.2/156.6 131.6/204.8 - 66.8/246.2",
    ("h100-dgx", 4): "35.2/8.7 65.5/98.6 120.4/122.4 78.8/10.5 144.4/151.5 282.8/198.2 - 108.6/187.9",
    ("h100-dgx", 16): "55.2/8.7 99.5/98.6 176.4/122.4 311.6/10.3 559.6/148.0 1190/193.5 - 192.2/183.4",
    ("h100-dgx", 128): "85.2/8.7 150.5/98.6 260.4/122.4 2484/10.2 4435/146.9 9657/192.2 - 317.6/182.2",
    ("a100-dgx", 1): "15.2/29.1 31.5/85.9 64.4/110.4 15.0/50.1 40.6/126.2 56.0/137.1 - -",
    ("a100-dgx", 4): "35.2/9.5 65.5/66.8 120.4/71.2 134.8/9.8 150.0/82.6 428.4/99.1 - -",
    ("b200-dgx", 1): "15.2/74.1 31.5/219.0 64.4/281.5 15.0/161.1 40.6/365.7 56.0/411.4 25.0/411.4 -",
}
ALL_GATHER_RING = {
    ("h100-dgx", 1): ((10.8, 161.1), (27.3, 378.5), (32.2, 411.4)),
    ("h100-dgx", 4): ((42.7, 21.1), (79.2, 303.1), (145.6, 396.4)),
}


def tuning(
    cluster: str, nodes: int, *, version: str = "2.30", local: int = 8, **variables: str
) -> TuningModel:
    spec = load_cluster(cluster)
    spec = replace(spec, nccl=replace(spec.nccl, version=version))
    return TuningModel(spec, GroupShape(nodes * local, nodes, local, local), Environment.parse(variables))


@pytest.mark.parametrize(("system", "values"), ALL_REDUCE.items())
def test_all_reduce_table(system: tuple[str, int], values: str) -> None:
    model = tuning(*system)
    for (algorithm, protocol), cell in zip(PAIRS, values.split()):
        if cell == "-":
            assert model.bandwidth("all_reduce", algorithm, protocol) == 0
            continue
        latency, bandwidth = map(float, cell.split("/"))
        assert model.latency("all_reduce", algorithm, protocol) == pytest.approx(latency, rel=6e-4, abs=0.05)
        assert model.bandwidth("all_reduce", algorithm, protocol) == pytest.approx(bandwidth, abs=0.06)


@pytest.mark.parametrize(("system", "values"), ALL_GATHER_RING.items())
@pytest.mark.parametrize("kind", ["all_gather", "reduce_scatter"])
def test_all_gather_table(
    system: tuple[str, int], values: tuple[tuple[float, float], ...], kind: str
) -> None:
    model = tuning(*system)
    for protocol, (latency, bandwidth) in zip(("ll", "ll128", "simple"), values):
        assert model.latency(kind, "ring", protocol) == pytest.approx(latency, abs=0.06)
        assert model.bandwidth(kind, "ring", protocol) == pytest.approx(bandwidth, abs=0.06)


def test_graphs_of_known_systems() -> None:
    one = tuning("a100-dgx", 1).graphs
    assert (one.ring, one.channels) == (Graph(12, 20, 20), 24)
    one = tuning("h100-dgx", 1).graphs
    assert (one.ring, one.nvls, one.channels, one.nvls_channels) == (
        Graph(12, 30, 30),
        Graph(8, 40, 60),
        24,
        16,
    )
    two = tuning("h100-dgx", 2).graphs
    assert (two.ring, two.nvls, two.channels) == (Graph(8, 48, 48), Graph(8, 40, 48), 16)
    two = tuning("a100-dgx", 2).graphs
    assert (two.ring, two.tree, two.channels) == (Graph(8, 24, 24), Graph(8, 30, 24), 16)
    one = tuning("b200-dgx", 1).graphs
    assert (one.ring, one.nvls, one.channels, one.nvls_channels) == (
        Graph(16, 45, 45),
        Graph(8, 80, 90),
        32,
        24,
    )


def test_h800_tree_bandwidth() -> None:
    spec = load_cluster("h100-dgx")
    spec = replace(spec, node=replace(spec.node, nvlink=replace(spec.node.nvlink, links=8)))
    model = TuningModel(spec, GroupShape(16, 2, 8, 8), Environment())
    assert model.graphs.tree.channels * model.graphs.tree.bw_inter == 8 * 22
    assert model.bandwidth("all_reduce", "tree", "simple") == pytest.approx(68.8, abs=0.05)


def winner(model: TuningModel, size: int) -> tuple[str, str]:
    pick = model.choose("all_reduce", size)
    return pick.algorithm, pick.protocol


def test_winners_on_one_h100_server() -> None:
    model = tuning("h100-dgx", 1)
    for exponent in range(3, 34):
        expected = ("ring", "ll") if exponent <= 20 else ("nvls", "simple")
        assert winner(model, 1 << exponent) == expected


def test_winners_on_64_hopper_servers() -> None:
    model = tuning("h200-dgx", 64)
    for exponent in range(3, 33):
        expected = (
            ("tree", "ll")
            if exponent <= 17
            else ("tree", "ll128")
            if exponent <= 24
            else ("nvlstree", "simple")
        )
        assert winner(model, 1 << exponent) == expected


def test_channels_of_ring_ll() -> None:
    model = tuning("h100-dgx", 1)
    assert model.choose("all_reduce", 4096).channels == 1
    assert model.choose("all_reduce", 1 << 20).channels == 24
    assert model.choose("all_reduce", 2 << 20).channels == 16


def test_environment_restricts_the_choice() -> None:
    assert winner(tuning("h100-dgx", 1, NCCL_ALGO="Tree"), 1 << 30)[0] == "tree"
    assert winner(tuning("h100-dgx", 1, NCCL_ALGO="^NVLS,Tree"), 1 << 30)[0] == "ring"
    assert winner(tuning("h100-dgx", 1, NCCL_PROTO="LL128"), 1 << 30)[1] == "ll128"
    assert winner(tuning("h100-dgx", 1, NCCL_NVLS_ENABLE="0"), 1 << 30)[0] == "ring"
    assert (
        tuning("h100-dgx", 1, NCCL_ALGO="Ring", NCCL_MAX_NCHANNELS="4").choose("all_reduce", 1 << 30).channels
        == 4
    )
    assert winner(tuning("h100-dgx", 2, NCCL_ALGO="allreduce:tree;broadcast:ring"), 1 << 30)[0] == "tree"
    for name, value in (("NCCL_ALGO", "Rings"), ("NCCL_PROTO", "LL64"), ("NCCL_MAX_NCHANNELS", "many")):
        with pytest.raises(ClusterError, match=name):
            tuning("h100-dgx", 1, **{name: value})


def test_versions_differ_where_constants_changed() -> None:
    assert tuning("h100-dgx", 2, version="2.21").latency("all_reduce", "tree", "simple") == pytest.approx(
        28 * 16
    )
    assert tuning("h100-dgx", 2).latency("all_reduce", "tree", "simple") == pytest.approx(92.4)
    assert tuning("h100-dgx", 4, version="2.27").latency("all_reduce", "nvlstree", "simple") == pytest.approx(
        81
    )
    assert tuning("h100-dgx", 4, version="2.21", local=1).bandwidth("all_gather", "pat", "simple") == 0
    assert tuning("h100-dgx", 4, version="2.23", local=1).bandwidth("all_gather", "pat", "simple") > 0


def test_fp8_reductions_avoid_rings_on_many_ranks() -> None:
    model = tuning("a100-dgx", 4)
    assert winner(model, 1 << 30) == ("ring", "simple")
    pick: Pick = model.choose("all_reduce", 1 << 30, narrow_reduction=True)
    assert pick.algorithm == "tree"
