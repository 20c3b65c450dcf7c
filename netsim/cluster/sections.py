"""The sections of a cluster file as checked values: [node], [fabric], [nccl], [host], [degrade]."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from netsim.cluster.schema import Table
from netsim.cluster.spec import (
    BackgroundFlow,
    DegradeSpec,
    FabricLink,
    FabricSpec,
    GpuSpec,
    HostSpec,
    NcclSpec,
    NodeSpec,
    NvlinkSpec,
    PcieSpec,
    ProtocolTiming,
    WithinNodeTiming,
)
from netsim.cluster.timing_defaults import (
    CHANNEL_INTER_US,
    CHANNEL_US,
    RING_TAIL,
    TIMING_KEYS,
    default_timing,
)
from netsim.cluster.within_node import WITHIN_NODE_KEYS, within_node_timing

FABRIC_KINDS = ("rail-fat-tree", "fat-tree", "single-switch", "torus", "direct-connect", "graph", "none")
NCCL_VERSIONS = ("2.18", "2.21", "2.23", "2.27", "2.28", "2.29", "2.30")

# x16 bandwidth in GB/s that NCCL's search uses (src/graph/topo.h, nccl_tuning notes in docs/network.md).
PCIE_X16_BYTES_PER_S = {3: 12e9, 4: 24e9, 5: 48e9, 6: 96e9}

# What cudaMemcpyAsync reaches between pinned memory and the GPU over x16 (gen 5: data/nccl.csv nc0460,
# nc0461).
PCIE_COPY_BYTES_PER_S = {3: 12.6e9, 4: 25.5e9, 5: 55e9, 6: 110e9}

# CPU time of eager PyTorch on a server's core, in seconds, with the Python around a call. How they were
# calibrated: docs/virtual-time.md. Change them in [host].
HOST_DEFAULTS_S = {
    "op_s": 10.0e-6,
    "view_s": 1.5e-6,
    "backward_node_s": 7.0e-6,
    "launch_latency_s": 2.0e-6,
    "collective_s": 25.0e-6,
    "query_s": 1.0e-6,
    "store_s": 50.0e-6,
}

# CPU-Adam takes 0.22 s for 10^9 parameters and 2.57 s for 10^10 on a DGX-2 server (ZeRO-Offload, Ren et al.,
# USENIX ATC 2021, table 4; both figures quoted from memory, not looked up in the paper): 0.25 ns each for 28
# bytes (parameter, momentum and variance read and written, gradient read, all float32).
HOST_OPTIMIZER_BYTES_PER_S = 112e9


# One message between two H100 servers with 400 Gb/s InfiniBand (data/vidur_network.csv.gz, microsoft/vidur):
# 36 GB/s of 48.
P2P_INTER_EFFICIENCY = 0.75

WITHIN_NODE_LIMITS: dict[str, tuple[float, float, str]] = {
    "base_us": (0.0, 1e5, "microseconds"),
    "hop_us": (0.0, 1e5, "microseconds"),
    "channel_us": (0.0, 1e4, "microseconds"),
    "efficiency": (0.01, 5.0, "the modelled bandwidth"),
    "channel_bytes_per_s": (1e6, 1e15, "bytes per second"),
    "sharpness": (0.2, 10.0, ""),
    "fill_us": (0.0, 1e5, "microseconds"),
    "fill_bytes": (1.0, 1e12, "bytes"),
    "tail": (0.0, 5.0, "steps"),
}


def node_section(t: Table, gpu: GpuSpec) -> NodeSpec:
    gpus = t.integer("gpus", low=1, high=256)
    nics = t.integer("nics", 0, low=0, high=64)
    sockets = t.integer("sockets", 2 if gpus > 1 else 1, low=1, high=8)
    cpu_vendor = t.text("cpu_vendor", "intel", choices=("intel", "amd", "arm"))
    nvlink_table = t.table("nvlink")
    kind = nvlink_table.text(
        "kind", "none" if not nvlink_table.names() else "switch", choices=("switch", "mesh", "pairs", "none")
    )
    if kind == "none" and [k for k in nvlink_table.names() if k != "kind"]:
        nvlink_table.fail(
            "kind", kind, 'must be "switch", "mesh" or "pairs" where other NVLink keys are given'
        )
    links = nvlink_table.integer(
        "links", 0 if kind == "none" else None, low=0 if kind == "none" else 1, high=64
    )
    rings = {}
    for size, count in nvlink_table.raw("ring_channels", {}).items():
        if (
            not size.isdigit()
            or not 2 <= int(size) <= gpus
            or not isinstance(count, int)
            or not 1 <= count <= 32
        ):
            nvlink_table.fail(
                f"ring_channels.{size}", count, f"must be GROUP SIZE (2 to {gpus}) = 1 to 32 rings"
            )
        rings[int(size)] = count
    nvlink = NvlinkSpec(
        kind=kind,
        links=links,
        link_bandwidth_bytes_per_s=nvlink_table.number(
            "link_bandwidth_bytes_per_s",
            0 if kind == "none" else None,
            low=1e9,
            high=1e12,
            unit="bytes per second",
            zero=kind == "none",
        ),
        latency_s=nvlink_table.number("latency_s", 0.7e-6, low=0, high=1e-3, unit="seconds"),
        efficiency=nvlink_table.number("efficiency", 0.82, low=0.05, high=1, unit="the line rate"),
        multicast=nvlink_table.boolean("multicast", gpu.capability[0] >= 9 and kind == "switch"),
        domain_nodes=nvlink_table.integer(
            "domain_nodes", 1, low=1, high=256, what="nodes in one NVLink domain"
        ),
        ring_channels=rings,
    )
    nvlink_table.close()
    p = t.table("pcie")
    generation = p.integer("generation", 4, low=3, high=6)
    lanes = p.integer("lanes", 16, low=1, high=16)
    if lanes not in (1, 2, 4, 8, 16):
        p.fail("lanes", lanes, "must be 1, 2, 4, 8 or 16")
    full = PCIE_X16_BYTES_PER_S[generation] * lanes / 16
    copy = PCIE_COPY_BYTES_PER_S[generation] * lanes / 16
    low_high: dict[str, Any] = {"low": 1e8, "high": 1e13, "unit": "bytes per second"}
    pcie = PcieSpec(
        generation=generation,
        lanes=lanes,
        bandwidth_bytes_per_s=p.number("bandwidth_bytes_per_s", copy, **low_high),
        host_bandwidth_bytes_per_s=p.number("host_bandwidth_bytes_per_s", copy, **low_high),
        p2p_bandwidth_bytes_per_s=p.number("p2p_bandwidth_bytes_per_s", full, **low_high),
        peer_bandwidth_bytes_per_s=p.number("peer_bandwidth_bytes_per_s", 0.0, zero=True, **low_high),
        pageable_bandwidth_bytes_per_s=p.number("pageable_bandwidth_bytes_per_s", min(full, 6e9), **low_high),
        latency_s=p.number("latency_s", 1.0e-6, low=0, high=1e-3, unit="seconds"),
        gpus_per_switch=p.integer("gpus_per_switch", min(2, gpus), low=1, high=gpus),
    )
    p.close()
    nic_needed = nics > 0
    spec = NodeSpec(
        gpus=gpus,
        cpu_vendor=cpu_vendor,
        sockets=sockets,
        socket_bandwidth_bytes_per_s=t.number("socket_bandwidth_bytes_per_s", 2 * full, **low_high),
        nics=nics,
        nic_bandwidth_bytes_per_s=t.number(
            "nic_bandwidth_bytes_per_s",
            None if nic_needed else 0.0,
            low=1e7,
            high=1e13,
            unit="bytes per second (400 Gb/s is 50e9)",
            zero=not nic_needed,
        ),
        nic_efficiency=t.number("nic_efficiency", 0.95, low=0.05, high=1, unit="the line rate"),
        nic_latency_s=t.number("nic_latency_s", 1.0e-6, low=0, high=1e-2, unit="seconds"),
        nvlink=nvlink,
        pcie=pcie,
    )
    t.close()
    if (nics > gpus and nics % gpus) or (gpus > nics > 0 and gpus % nics):
        t.fail("nics", nics, f"must divide or be a multiple of gpus = {gpus}")
    if sockets > 1 and gpus % sockets:
        t.fail("sockets", sockets, f"must divide gpus = {gpus}")
    return spec


def fabric_section(t: Table, node: NodeSpec) -> FabricSpec:
    kind = t.text("kind", "none" if not t.names() else None, choices=FABRIC_KINDS)
    if kind != "none" and not node.nics:
        t.fail("kind", kind, 'needs nics in [node]; use "none" for a single node')
    links: list[FabricLink] = []
    if kind == "graph":
        links = [_fabric_link(item) for item in t.items("links")]
        if not links:
            t.fail("links", t.raw("links"), 'must list the edges: { ends = ["node0/nic0", "leaf0"], ... }')
    dimensions: tuple[int, ...] = ()
    if kind == "torus":
        dimensions = t.integers("dimensions", low=1, high=4096)
        if len(dimensions) > 6:
            t.fail("dimensions", list(dimensions), "must have at most 6 entries")
    tree = kind in ("rail-fat-tree", "fat-tree")
    spec = FabricSpec(
        kind=kind,
        routing=t.text("routing", "spray", choices=("spray", "ecmp")),
        nodes_per_leaf=t.integer("nodes_per_leaf", 32, low=1, high=4096) if tree else 1,
        spines=t.integer("spines", 16, low=1, high=4096) if tree else 0,
        oversubscription=t.number("oversubscription", 1.0, low=0.1, high=100, unit="down over up")
        if tree
        else 1.0,
        link_bandwidth_bytes_per_s=t.number(
            "link_bandwidth_bytes_per_s",
            node.nic_bandwidth_bytes_per_s * (node.nics if kind in ("torus", "direct-connect") else 1),
            low=1e7,
            high=1e14,
            unit="bytes per second",
            zero=kind == "none",
        ),
        hop_latency_s=t.number("hop_latency_s", 0.5e-6, low=0, high=1e-2, unit="seconds"),
        dimensions=dimensions,
        links=tuple(links),
    )
    t.close()
    return spec


def _fabric_link(t: Table) -> FabricLink:
    ends = t.raw("ends")
    if not isinstance(ends, list) or len(ends) != 2 or not all(isinstance(e, str) and e for e in ends):
        t.fail("ends", ends, 'must be two names, as ["node0/nic0", "leaf0"]')
    if ends[0] == ends[1]:
        t.fail("ends", ends, "must be two different names")
    spec = FabricLink(
        ends=(ends[0], ends[1]),
        bandwidth_bytes_per_s=t.number("bandwidth_bytes_per_s", low=1e7, high=1e14, unit="bytes per second"),
        latency_s=t.number("latency_s", 0.5e-6, low=0, high=1e-2, unit="seconds"),
    )
    t.close()
    return spec


def nccl_section(t: Table, gpu: GpuSpec, node: NodeSpec) -> NcclSpec:
    timing_table = t.table("timing")
    net_latency_us = t.number("net_latency_us", 0.0, low=0, high=1e4, unit="microseconds")
    defaults = default_timing(gpu, node, net_latency_us)
    timing = {}
    for key in timing_table.names():
        if key not in TIMING_KEYS:
            timing_table.fail(key, timing_table.raw(key), f"unknown; allowed: {', '.join(TIMING_KEYS)}")
    for key in TIMING_KEYS:
        row = timing_table.table(key)
        values = {}
        for f in fields(ProtocolTiming):
            high = 1.5 if f.name == "efficiency" else 1e5
            low = 0.01 if f.name == "efficiency" else 0.0
            unit = "the modelled bandwidth" if f.name == "efficiency" else "microseconds"
            values[f.name] = row.number(f.name, getattr(defaults[key], f.name), low=low, high=high, unit=unit)
        row.close()
        timing[key] = ProtocolTiming(**values)
    spec = NcclSpec(
        within_node=_within_node(t.table("within_node"), gpu, node),
        version=t.text("version", "2.30", choices=NCCL_VERSIONS),
        timing=timing,
        channel_us=t.number("channel_us", CHANNEL_US, low=0, high=1e4, unit="microseconds"),
        channel_inter_us=t.number("channel_inter_us", CHANNEL_INTER_US, low=0, high=1e4, unit="microseconds"),
        ring_tail=t.number(
            "ring_tail", RING_TAIL if gpu.capability == (8, 0) else 0.1, low=0, high=2, unit="steps"
        ),
        net_latency_us=net_latency_us,
        p2p_base_us=t.number("p2p_base_us", 8.0, low=0, high=1e5, unit="microseconds"),
        p2p_inter_us=t.number("p2p_inter_us", 12.0, low=0, high=1e5, unit="microseconds"),
        p2p_peer_us=t.number("p2p_peer_us", 0.7, low=0, high=1e4, unit="microseconds"),
        p2p_inter_efficiency=t.number(
            "p2p_inter_efficiency", P2P_INTER_EFFICIENCY, low=0.05, high=1, unit="the NICs' achievable rate"
        ),
        pxn=t.boolean("pxn", node.nvlink.kind == "switch"),
    )
    t.close()
    return spec


def _within_node(t: Table, gpu: GpuSpec, node: NodeSpec) -> dict[str, WithinNodeTiming]:
    timing = dict(within_node_timing(gpu, node))
    for key in t.names():
        if key not in WITHIN_NODE_KEYS:
            t.fail(key, t.raw(key), f"unknown; allowed: {', '.join(WITHIN_NODE_KEYS)}")
        row = t.table(key)
        old = timing.get(key)
        values = {
            name: row.number(name, None if old is None else getattr(old, name), low=low, high=high, unit=unit)
            for name, (low, high, unit) in WITHIN_NODE_LIMITS.items()
        }
        row.close()
        timing[key] = WithinNodeTiming(**values)
    t.close()
    return timing


def host_section(t: Table) -> HostSpec:
    spec = HostSpec(
        **{
            key: t.number(key, default, low=0, high=1, unit="seconds")
            for key, default in HOST_DEFAULTS_S.items()
        },
        optimizer_bytes_per_s=t.number(
            "optimizer_bytes_per_s", HOST_OPTIMIZER_BYTES_PER_S, low=1e6, high=1e14, unit="bytes/s"
        ),
    )
    t.close()
    return spec


def degrade_section(t: Table) -> DegradeSpec:
    numbered: dict[str, dict[int, float]] = {}
    for key in ("gpus", "hosts"):
        what = "rank" if key == "gpus" else "node"
        numbered[key] = {}
        for name, factor in t.factors(key, what=what).items():
            if not (name.isascii() and name.isdigit() and len(name) <= 7):
                t.fail(f"{key}.{name}", factor, f"must be {what} number = speed factor")
            numbered[key][int(name)] = factor
    background = []
    for item in t.items("background"):
        background.append(
            BackgroundFlow(
                source=item.integer("source", low=0, high=1 << 20, what="global rank"),
                destination=item.integer("destination", low=0, high=1 << 20, what="global rank"),
                bandwidth_bytes_per_s=item.number(
                    "bandwidth_bytes_per_s", low=1e3, high=1e13, unit="bytes per second"
                ),
            )
        )
        if background[-1].source == background[-1].destination:
            item.fail("destination", background[-1].destination, "must be another rank than source")
        item.close()
    spec = DegradeSpec(
        gpus=numbered["gpus"],
        hosts=numbered["hosts"],
        links=t.factors("links", zero=True, what="link name"),
        background=tuple(background),
    )
    t.close()
    return spec
