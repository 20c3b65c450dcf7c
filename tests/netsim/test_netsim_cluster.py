"""Loading cluster files, and every way to get one wrong."""

from __future__ import annotations

import csv
import re
from pathlib import Path
from typing import Any

import pytest

from netsim.cluster import gpu_preset, list_presets, load_cluster, parse_cluster
from netsim.cluster.gpus import GPUS_FILE
from netsim.errors import ClusterError
from netsim.network import Network

GPU = {"preset": "h100-sxm"}
NODE = {
    "gpus": 8,
    "nics": 8,
    "nic_bandwidth_bytes_per_s": 50e9,
    "nvlink": {"kind": "switch", "links": 18, "link_bandwidth_bytes_per_s": 25e9},
}
FABRIC = {"kind": "rail-fat-tree"}


def cluster(**tables: Any) -> dict[str, Any]:
    return {"name": "mine", "gpu": GPU, "node": NODE, "fabric": FABRIC} | tables


def node(**keys: Any) -> dict[str, Any]:
    return cluster(node=NODE | keys)


def nvlink(**keys: Any) -> dict[str, Any]:
    return node(nvlink=NODE["nvlink"] | keys)  # type: ignore[operator]


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"gpu": GPU, "node": NODE, "fabric": FABRIC}, r"name is missing"),
    (cluster(name=""), r"name = ''"),
    (cluster(name=3), r"name = 3"),
    ({"name": "x", "node": NODE}, r"\[gpu\] is missing"),
    ({"name": "x", "gpu": GPU}, r"\[node\] is missing"),
    (cluster(gpu="h100-sxm"), r"gpu = 'h100-sxm': must be a table"),
    (cluster(gpus={}), r"gpus = .*unknown key"),
    (cluster(base="h100"), r"base = 'h100'.*did you mean|base = 'h100'.*must be one of"),
    (cluster(gpu={"preset": "h100-sxn"}), r"gpu.preset = 'h100-sxn'.*did you mean \"h100-sxm\""),
    (cluster(gpu=GPU | {"memory": 80}), r"gpu.memory = 80: unknown key \(did you mean \"memory_bytes\""),
    (cluster(gpu=GPU | {"memory_bytes": 80e9}), r"gpu.memory_bytes = 80000000000.0: must be an integer"),
    (cluster(gpu=GPU | {"memory_bytes": 80}), r"gpu.memory_bytes = 80: must be an integer"),
    (
        cluster(gpu=GPU | {"memory_bandwidth_bytes_per_s": 3.35}),
        r"memory_bandwidth_bytes_per_s = 3.35.*bytes per second",
    ),
    (cluster(gpu=GPU | {"capability": "9.0"}), r"gpu.capability = '9.0': must be a list"),
    (cluster(gpu=GPU | {"capability": [9]}), r"gpu.capability = \[9\]: must be \[major, minor\]"),
    (cluster(gpu=GPU | {"clock_hz": 1.83}), r"gpu.clock_hz = 1.83.*Hz"),
    (cluster(gpu=GPU | {"multi_processor_count": -1}), r"multi_processor_count = -1"),
    (cluster(gpu=GPU | {"peak_flops": {"fp16": 1e15}}), r"gpu.peak_flops.fp16 = .*unknown type.*float16"),
    (cluster(gpu=GPU | {"peak_flops": {"float16": 989}}), r"gpu.peak_flops.float16 = 989.*FLOP/s"),
    (cluster(gpu={"name": "mine"}), r"gpu.capability is missing"),
    (node(gpus=0), r"node.gpus = 0: must be an integer between 1 and 256"),
    (node(gpus="8"), r"node.gpus = '8'"),
    (node(gpus=True), r"node.gpus = True"),
    (node(nics=3), r"node.nics = 3: must divide"),
    (node(nic_bandwidth_bytes_per_s="400Gb/s"), r"nic_bandwidth_bytes_per_s = '400Gb/s'.*400 Gb/s is 50e9"),
    (node(nic_bandwidth_bytes_per_s=400), r"nic_bandwidth_bytes_per_s = 400.*bytes per second"),
    (node(nic_bandwidth_gbps=400), r"node.nic_bandwidth_gbps = 400: unknown key"),
    (node(nic_efficiency=96), r"node.nic_efficiency = 96"),
    (node(cpu_vendor="via"), r'node.cpu_vendor = .via.*"intel", "amd", "arm"'),
    (node(sockets=3), r"node.sockets = 3: must divide gpus"),
    (cluster(node={"gpus": 8, "nics": 8}), r"node.nic_bandwidth_bytes_per_s is missing"),
    (nvlink(kind="swich"), r"node.nvlink.kind = 'swich'.*did you mean \"switch\""),
    (nvlink(kind="none"), r"node.nvlink.kind = 'none'"),
    (nvlink(links=0), r"node.nvlink.links = 0"),
    (nvlink(link_bandwidth_bytes_per_s=25), r"link_bandwidth_bytes_per_s = 25"),
    (nvlink(ring_channels={"9": 1}), r"node.nvlink.ring_channels.9 = 1"),
    (node(nvlink=18), r"node.nvlink = 18: must be a table"),
    (node(pcie={"generation": 2}), r"node.pcie.generation = 2"),
    (node(pcie={"lanes": 3}), r"node.pcie.lanes = 3: must be 1, 2, 4, 8 or 16"),
    (cluster(fabric={"kind": "fattree"}), r"fabric.kind = 'fattree'.*did you mean \"fat-tree\""),
    (cluster(fabric={"spines": 4}), r"fabric.kind is missing"),
    (cluster(node={"gpus": 8}, fabric={"kind": "fat-tree"}), r"fabric.kind = 'fat-tree': needs nics"),
    (cluster(fabric=FABRIC | {"routing": "adaptive"}), r'fabric.routing = .adaptive.*"spray", "ecmp"'),
    (cluster(fabric=FABRIC | {"oversubscription": 0}), r"fabric.oversubscription = 0"),
    (cluster(fabric={"kind": "single-switch", "spines": 2}), r"fabric.spines = 2: unknown key"),
    (cluster(fabric={"kind": "torus"}), r"fabric.dimensions is missing"),
    (cluster(fabric={"kind": "torus", "dimensions": [4, 0]}), r"fabric.dimensions = \[4, 0\]"),
    (cluster(fabric={"kind": "graph"}), r"fabric.links = None: must list the edges"),
    (cluster(fabric={"kind": "graph", "links": [{"ends": ["a"]}]}), r"fabric.links\[0\].ends = \['a'\]"),
    (
        cluster(fabric={"kind": "graph", "links": [{"ends": ["a", "a"], "bandwidth_bytes_per_s": 1e9}]}),
        r"two different names",
    ),
    (cluster(nccl={"version": "1.0"}), r'nccl.version = .1.0.*"2.30"'),
    (cluster(nccl={"timing": {"ring": {}}}), r"nccl.timing.ring = .*unknown; allowed: .*ring_ll"),
    (
        cluster(nccl={"timing": {"ring_ll": {"base_us": -1}}}),
        r"nccl.timing.ring_ll.base_us = -1.*microseconds",
    ),
    (cluster(host={"op_us": 4}), r"host.op_us = 4: unknown key"),
    (cluster(host={"op_s": 4.5}), r"host.op_s = 4.5.*seconds"),
    (cluster(degrade={"gpus": {"0": 2.0}}), r"degrade.gpus.0 = 2.0: must be a factor"),
    (cluster(degrade={"gpus": {"gpu0": 0.5}}), r"degrade.gpus.gpu0 = 0.5: must be rank number"),
    (cluster(degrade={"hosts": {"0": 0}}), r"degrade.hosts.0 = 0: must be a factor"),
    (cluster(degrade={"links": [1]}), r"degrade.links = \[1\]: must be a table"),
    (cluster(degrade={"background": [{"source": 0}]}), r"degrade.background\[0\].destination is missing"),
]


@pytest.mark.parametrize(("data", "message"), WRONG)
def test_wrong_file(data: dict[str, Any], message: str) -> None:
    with pytest.raises(ClusterError, match=message) as caught:
        parse_cluster(data, file="mine.toml")
    assert str(caught.value).startswith("mine.toml: ")


# What is only wrong for a job of a given size.
WRONG_JOB: list[tuple[dict[str, Any], int, int, str]] = [
    (cluster(), 1, 9, r"node.gpus = 8: the job wants 9"),
    (cluster(fabric={"kind": "none"}), 2, 8, r'fabric.kind = "none": the job wants 2 nodes'),
    (cluster(fabric={"kind": "torus", "dimensions": [2, 2]}), 2, 8, r"fabric.dimensions = \[2, 2\].*2 nodes"),
    (
        cluster(degrade={"links": {"leaf99->spine0": 0.5}}),
        2,
        8,
        r"degrade.links.leaf99->spine0 = 0.5: no such link",
    ),
    (cluster(degrade={"gpus": {"16": 0.5}}), 2, 8, r"degrade.gpus.16 = 0.5: must be below 16"),
    (
        cluster(degrade={"background": [{"source": 0, "destination": 99, "bandwidth_bytes_per_s": 1e9}]}),
        2,
        8,
        r"degrade.background\[0\] = 0 to 99",
    ),
    (
        cluster(
            fabric={"kind": "graph", "links": [{"ends": ["node7/nic0", "s"], "bandwidth_bytes_per_s": 1e9}]}
        ),
        1,
        8,
        r"fabric.links\[0\].ends = .*node7/nic0 is not in a job of 1 nodes",
    ),
    (
        cluster(
            fabric={"kind": "graph", "links": [{"ends": ["node0/nic0", "s"], "bandwidth_bytes_per_s": 1e9}]}
        ),
        1,
        8,
        r"fabric.links: no edge at node0/nic1",
    ),
]


@pytest.mark.parametrize(("data", "nodes", "gpus", "message"), WRONG_JOB)
def test_wrong_for_the_job(data: dict[str, Any], nodes: int, gpus: int, message: str) -> None:
    spec = parse_cluster(data, file="mine.toml")
    with pytest.raises(ClusterError, match=message) as caught:
        Network(spec, nodes=nodes, gpus_per_node=gpus, environment={}, seed=0)
    assert str(caught.value).startswith("mine.toml: ")


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ClusterError, match=r"no such cluster.*h100-dgx"):
        load_cluster("h100")
    broken = tmp_path / "broken.toml"
    broken.write_text("name = \n")
    with pytest.raises(ClusterError, match=r"broken.toml: not a TOML file"):
        load_cluster(broken)


def test_own_file_over_a_preset(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(
        'name = "mine"\nbase = "h100-dgx"\n[gpu]\nmemory_bytes = 100_000_000_000\n[node]\nnics = 4\n'
    )
    spec = load_cluster(path)
    assert (spec.name, spec.source) == ("mine", str(path))
    assert (spec.gpu.memory_bytes, spec.gpu.name) == (100_000_000_000, "NVIDIA H100 80GB HBM3")
    assert (spec.node.nics, spec.node.gpus) == (4, 8)


@pytest.mark.parametrize("name", list_presets())
def test_presets_load(name: str) -> None:
    spec = load_cluster(name)
    assert spec.name == name
    assert spec.description


def test_the_presets_that_are_promised() -> None:
    promised = {
        "a100-dgx",
        "a100-azure-nd",
        "h100-dgx",
        "h200-dgx",
        "b200-dgx",
        "gb200-nvl72",
        "a100-pcie",
        "rtx4090-box",
        "cpu-loopback",
        "v100-dgx",
        "local-cpu",
    }
    assert promised <= set(list_presets())


def test_gpu_presets_agree_with_the_published_table() -> None:
    with (GPUS_FILE.parent / "gpu_specs.csv").open(encoding="utf-8") as file:
        table = {row["gpu"]: row for row in csv.DictReader(file)}
    pairs = {
        "a100-sxm-80gb": "NVIDIA A100 SXM",
        "a100-sxm-40gb": "NVIDIA A100 SXM 40GB",
        "a100-pcie-80gb": "NVIDIA A100 PCIe",
        "h100-sxm": "NVIDIA H100 SXM",
        "h200-sxm": "NVIDIA H200 SXM",
        "b200-sxm": "NVIDIA B200 SXM",
        "gb200": "NVIDIA GB200 SXM",
        "v100-sxm2-32gb": "NVIDIA V100 SXM2",
        "rtx-4090": "NVIDIA RTX 4090",
    }
    for preset, name in pairs.items():
        gpu, row = gpu_preset(preset), table[name]
        peaks = {
            "float32": "fp32_tflops",
            "tf32": "tf32_tflops",
            "float16": "fp16_tflops",
            "float8": "fp8_tflops",
        }
        for dtype, column in peaks.items():
            if row[column] and dtype in gpu.peak_flops:
                assert gpu.peak_flops[dtype] == pytest.approx(float(row[column]) * 1e12, rel=0.01)
        if row["mem_bw_tbps"]:
            assert gpu.memory_bandwidth_bytes_per_s == pytest.approx(
                float(row["mem_bw_tbps"]) * 1e12, rel=0.025
            )
        if row["sm_count"]:
            assert gpu.multi_processor_count == int(row["sm_count"])
        if row["boost_mhz"]:
            assert gpu.clock_hz == pytest.approx(float(row["boost_mhz"]) * 1e6)
        assert gpu.memory_bytes <= float(row["mem_gb"]) * 2**30 * 1.0001


def test_examples_of_the_documentation_load(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "cluster-file.md").read_text(encoding="utf-8")
    examples = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    assert len(examples) == 2
    for text in examples:
        path = tmp_path / "example.toml"
        path.write_text(text, encoding="utf-8")
        spec = load_cluster(path)
        Network(spec, nodes=8 if "base" in text else 2, gpus_per_node=4, environment={}, seed=0)


@pytest.mark.parametrize(
    ("degrade", "words"),
    [
        ({"links": {"node0/nic0": 1e-320}}, "between 1e-06 and 1 or 0"),
        ({"gpus": {"0": 1e-320}}, "between 1e-06 and 1"),
        ({"hosts": {"0": 0.0}}, "between 1e-06 and 1"),
        ({"gpus": {"\u00b2": 0.5}}, "must be rank number = speed factor"),
        (
            {"background": [{"source": 3, "destination": 3, "bandwidth_bytes_per_s": 1e9}]},
            "must be another rank than source",
        ),
    ],
)
def test_what_a_run_could_not_use_does_not_pass_the_check(degrade: dict[str, Any], words: str) -> None:
    with pytest.raises(ClusterError, match=words):
        parse_cluster({"base": "h100-dgx", "name": "x", "degrade": degrade}, file="t.toml")


def test_a_table_of_another_kind_takes_nothing_from_its_base() -> None:
    wired = parse_cluster({"name": "d", "base": "h100-dgx", "fabric": {"kind": "direct-connect"}}, file="f")
    assert wired.fabric.kind == "direct-connect"
    assert wired.fabric.spines == 0
    pcie = parse_cluster({"name": "d", "base": "h100-dgx", "node": {"nvlink": {"kind": "none"}}}, file="f")
    assert pcie.node.nvlink.links == 0
    assert pcie.node.nics == 8
