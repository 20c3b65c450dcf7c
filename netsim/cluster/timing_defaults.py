"""Calibrated times of NCCL's algorithms and protocols where a cluster file gives none."""

from __future__ import annotations

from netsim.cluster.spec import GpuSpec, NodeSpec, ProtocolTiming
from netsim.nccl.constants import BASE_LATENCY_US, HOP_LATENCY_US, PROTOCOLS

TIMING_KEYS = (
    "tree_ll",
    "tree_ll128",
    "tree_simple",
    "ring_ll",
    "ring_ll128",
    "ring_simple",
    "nvls_simple",
    "nvlstree_simple",
    "pat_simple",
    "gloo",
    "gloo_all_gather",
    "gloo_reduce_scatter",
    "gloo_broadcast",
    "gloo_p2p",
)
"""`gloo` stands for all_reduce and whatever has no entry of its own."""

# Fitted on a100-azure-nd, see docs/network.md.
CHANNEL_US = 8.2
CHANNEL_INTER_US = 1.8

# From 2 to 8 A100 in one server (data/nccl.csv, VIA-Research/vTrain): busbw 188, 212, 217, 224, 227, 227,
# 229.
RING_TAIL = 0.5

FITTED = {
    # Rings with LL between servers were not measured: NCCL's 2.7 us, times what the log adds to Tree's LL
    # hop.
    "ring_ll": (7.2, 1.12, 6.0, 1.0),
    "ring_ll128": (14.2, 1.53, 3.7, 0.86),
    "ring_simple": (13.9, 3.42, 11.0, 1.04),
    "tree_ll": (6.4, 0.47, 11.3, 1.0),
    "tree_ll128": (11.8, 0.70, 8.2, 0.83),
    "nvls_simple": (55.0, 0.0, 18.0, 0.99),
    "nvlstree_simple": (55.0, 0.0, 20.9, 1.02),
}

GLOO = ProtocolTiming(base_us=40.0, intra_us=15.0, inter_us=25.0, efficiency=0.9)


def nccl_constants_as_timing(*, nvlink: bool, net_latency_us: float = 0.0) -> dict[str, ProtocolTiming]:
    """NCCL's own latency constants: the prior of a fit, with nothing calibrated."""
    result = {}
    where = "nvlink" if nvlink else "pcie"
    for key in TIMING_KEYS:
        if key.startswith("gloo"):
            result[key] = GLOO
            continue
        algorithm, protocol = key.split("_")
        p = PROTOCOLS.index(protocol)
        hop = HOP_LATENCY_US[where][algorithm][p]
        net = HOP_LATENCY_US["net"][algorithm][p]
        base = BASE_LATENCY_US[algorithm][p]
        if algorithm in ("nvls", "nvlstree"):
            base, hop = 40.0, 0.0
        result[key] = ProtocolTiming(
            base_us=base,
            intra_us=hop,
            inter_us=net + net_latency_us * (2 if protocol == "simple" else 1),
            efficiency=0.95,
        )
    return result


def default_timing(gpu: GpuSpec, node: NodeSpec, net_latency_us: float) -> dict[str, ProtocolTiming]:
    """Timing for hardware without measurements of its own.

    With NVLink: rings and trees as fitted on a100-azure-nd, NVLS on h200-dgx, NVLSTree's bandwidth on
    h100-aws-p5, hops between nodes of what was not measured from NCCL's constants. Without: NCCL's
    constants.
    """
    timing = nccl_constants_as_timing(nvlink=node.nvlink.kind != "none", net_latency_us=net_latency_us)
    if node.nvlink.kind != "none":
        for key, (base, intra, inter, efficiency) in FITTED.items():
            timing[key] = ProtocolTiming(
                base_us=base, intra_us=intra, inter_us=inter + net_latency_us, efficiency=efficiency
            )
    return timing
