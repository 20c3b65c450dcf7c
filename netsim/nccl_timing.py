"""Calibrated times of NCCL's algorithms and protocols where a cluster file gives none."""

from __future__ import annotations

from netsim.spec import GpuSpec, NodeSpec, ProtocolTiming

TIMING_KEYS = (
    "tree_ll", "tree_ll128", "tree_simple", "ring_ll", "ring_ll128", "ring_simple",
    "nvls_simple", "nvlstree_simple", "pat_simple", "gloo",
)  # fmt: skip


def default_timing(gpu: GpuSpec, node: NodeSpec) -> dict[str, ProtocolTiming]:
    """Timing for hardware without measurements: fitted on A100 logs, see docs/network.md."""
    t = ProtocolTiming
    return {
        "tree_ll": t(base_us=6.8, intra_us=0.6, inter_us=5.0, fill_us=0.0, efficiency=1.0),
        "tree_ll128": t(base_us=14.0, intra_us=1.25, inter_us=8.5, fill_us=0.0, efficiency=1.0),
        "tree_simple": t(base_us=8.4, intra_us=4.0, inter_us=14.0, fill_us=0.0, efficiency=1.0),
        "ring_ll": t(base_us=6.6, intra_us=0.6, inter_us=2.7, fill_us=0.0, efficiency=1.0),
        "ring_ll128": t(base_us=14.0, intra_us=1.9, inter_us=4.0, fill_us=0.0, efficiency=1.0),
        "ring_simple": t(base_us=8.4, intra_us=3.4, inter_us=14.0, fill_us=0.0, efficiency=1.0),
        "nvls_simple": t(base_us=25.0, intra_us=0.0, inter_us=18.0, fill_us=0.0, efficiency=1.0),
        "nvlstree_simple": t(base_us=25.0, intra_us=0.0, inter_us=20.9, fill_us=0.0, efficiency=1.0),
        "pat_simple": t(base_us=8.0, intra_us=2.8, inter_us=4.0, fill_us=0.0, efficiency=1.0),
        "gloo": t(base_us=40.0, intra_us=15.0, inter_us=25.0, fill_us=0.0, efficiency=1.0),
    }
