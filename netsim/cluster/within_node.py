"""Calibrated times inside a node, by GPU generation (`data/within_node.toml`, `calibrate.within_node`)."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

from netsim.cluster.spec import GpuSpec, NodeSpec, WithinNodeTiming

if sys.version_info >= (3, 11):
    import tomllib
else:  # the same parser under its older name
    import tomli as tomllib

WITHIN_NODE_FILE = Path(__file__).parents[1] / "data" / "within_node.toml"
WITHIN_NODE_KEYS = (
    "tree_ll",
    "tree_ll128",
    "tree_simple",
    "ring_ll",
    "ring_ll128",
    "ring_simple",
    "nvls_simple",
    "send_recv",
    "all_to_all",
)


@lru_cache(maxsize=1)
def within_node_sets() -> Mapping[str, Mapping[str, WithinNodeTiming]]:
    """Every fitted set by its name ("hopper-nvlink")."""
    data = tomllib.loads(WITHIN_NODE_FILE.read_text(encoding="utf-8"))
    return {name: {key: WithinNodeTiming(**row) for key, row in keys.items()} for name, keys in data.items()}


def within_node_set(gpu: GpuSpec, node: NodeSpec) -> str:
    """Name of the set whose GPU generation and links a node has; empty where none was measured.

    NVLink: A100, Hopper and Blackwell each have their own. PCIe: RTX PRO 6000 (Blackwell) for generation 5
    and later, L40S (Ada) for what is older.
    """
    major = gpu.capability[0]
    if gpu.is_cpu or major < 8:
        return ""
    if node.nvlink.kind == "none":
        return "blackwell-pcie" if node.pcie.generation >= 5 else "ada-pcie"
    return {8: "ampere-nvlink", 9: "hopper-nvlink"}.get(major, "blackwell-nvlink")


def within_node_timing(gpu: GpuSpec, node: NodeSpec) -> Mapping[str, WithinNodeTiming]:
    """The timing of a node's set; empty where there is none."""
    return within_node_sets().get(within_node_set(gpu, node), {})
