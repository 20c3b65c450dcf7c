"""The bus bandwidth that the slowest link would allow: what a collective's figure is compared with."""

from __future__ import annotations

from collections import Counter

from netsim.operation import Operation
from netsim.spec import ClusterSpec

IN_SWITCH_ALGORITHMS = ("nvls", "nvls_tree", "collnet_direct", "collnet_chain")


def bus_limit_bytes_per_s(
    cluster: ClusterSpec, operation: Operation, algorithm: str, *, gpus_per_node: int
) -> float | None:
    """Largest bus bandwidth (bytes/s, nccl-tests' definition) that the line rates of the links allow.

    With n ranks on m nodes and a buffer of S bytes, NVLink rate B per GPU and NIC rate N per node:

    * inside a node every GPU sends and receives S (n-1)/n at least (twice that for an all_reduce without
      reduction in the switch), which makes bus bandwidth B; with it an all_reduce reaches 2 (n-1)/n B;
    * between nodes each node sends and receives S (m-1)/m (twice that for an all_reduce), hence
      N ((n-1)/n) / ((m-1)/m); an all_to_all carries that for each rank of the node;
    * a broadcast or reduce carries S over every link it crosses, a message over the NICs of its two GPUs.

    None where nothing is transferred (one rank, barrier) or the cluster does not say (Gloo).
    """
    if operation.kind == "transfer":
        return cluster.node.pcie.bandwidth_bytes_per_s
    if cluster.gpu.is_cpu:
        return None  # Gloo between processes
    ranks = operation.ranks
    if operation.kind == "p2p":
        ranks = (operation.source, operation.destination)
    n = len(set(ranks))
    if n < 2 or operation.kind == "barrier" or operation.backend != "nccl":
        return None
    node = cluster.node
    per_node = Counter(rank // max(gpus_per_node, 1) for rank in ranks)
    limits = []
    if max(per_node.values()) > 1:
        inside = node.nvlink.links * node.nvlink.link_bandwidth_bytes_per_s
        if node.nvlink.kind == "none" or not inside:
            inside = node.pcie.bandwidth_bytes_per_s
        if operation.kind == "all_reduce" and algorithm in IN_SWITCH_ALGORITHMS:
            inside *= 2 * (n - 1) / n
        limits.append(inside)
    m = len(per_node)
    domains = {index // max(node.nvlink.domain_nodes, 1) for index in per_node}
    if len(domains) > 1:
        between = node.nics * node.nic_bandwidth_bytes_per_s
        if operation.kind == "p2p":
            between = max(1, node.nics // node.gpus) * node.nic_bandwidth_bytes_per_s
        if operation.kind in ("all_reduce", "all_gather", "reduce_scatter"):
            between *= (n - 1) / n / ((m - 1) / m)
        elif operation.kind == "all_to_all":
            between *= (n - 1) / n / ((m - 1) / m) / max(per_node.values())
        limits.append(between)
    elif m > 1 and not limits:
        limits.append(node.nvlink.links * node.nvlink.link_bandwidth_bytes_per_s)
    return min(limits) if limits else None
