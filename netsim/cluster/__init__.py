"""Cluster descriptions: values, the table of GPUs, and checked loading of presets and TOML files."""

from netsim.cluster.load import gpu_preset, gpu_presets, list_presets, load_cluster, parse_cluster
from netsim.cluster.spec import ClusterSpec

__all__ = ["ClusterSpec", "gpu_preset", "gpu_presets", "list_presets", "load_cluster", "parse_cluster"]
