"""The bus bandwidth that the slowest link would allow: what a collective's figure is compared with."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from netsim.cluster.spec import ClusterSpec
from netsim.operation import Operation, bus_factor

IN_SWITCH_ALGORITHMS = ("nvls", "nvlstree", "collnet_direct", "collnet_chain")


class Placement:
    """What of an operation's ranks decides which links it crosses: nodes, ranks per node, NVLink domains."""

    def __init__(self, cluster: ClusterSpec, gpus_per_node: int) -> None:
        self._domain_nodes = max(cluster.node.nvlink.domain_nodes, 1)
        self._gpus_per_node = max(gpus_per_node, 1)
        self._known: dict[tuple[int, ...], tuple[int, int, int]] = {}

    def __call__(self, operation: Operation) -> tuple[int, int, int]:
        """(nodes, ranks on one node at most, domains)."""
        ranks = _ends(operation)
        found = self._known.get(ranks)
        if found is None:
            per_node = Counter(rank // self._gpus_per_node for rank in ranks)
            domains = {node // self._domain_nodes for node in per_node}
            found = (len(per_node), max(per_node.values(), default=0), len(domains))
            self._known[ranks] = found
        return found


def _ends(operation: Operation) -> tuple[int, ...]:
    return (operation.source, operation.destination) if operation.kind == "p2p" else operation.ranks


def _inside_bytes_per_s(cluster: ClusterSpec, members: int) -> float:
    """What a GPU can send to the others of `members` in its node: NVLink, else PCIe.

    In a mesh it is the wires to those others. With bridged pairs, more than two members meet PCIe.
    """
    node = cluster.node
    inside = node.nvlink.links * node.nvlink.link_bandwidth_bytes_per_s
    if node.nvlink.wired:
        per_pair = node.nvlink.links_per_pair(node.gpus) * node.nvlink.link_bandwidth_bytes_per_s
        inside = per_pair * (members - 1) if node.nvlink.kind == "mesh" else per_pair
        if node.nvlink.kind == "pairs" and members > 2:
            inside = 0.0
    return node.pcie.bandwidth_bytes_per_s if node.nvlink.kind == "none" or not inside else inside


def uneven_limit_bytes_per_s(
    cluster: ClusterSpec, uneven: Mapping[Operation, int], *, gpus_per_node: int
) -> float | None:
    """The same for uneven all_to_alls, each with how often it was there, of the mean of their times.

    A rank takes at least what it exchanges inside its NVLink domain over its bandwidth, a node what it
    exchanges with other domains over that of its NICs. None where nothing crosses a link, or the cluster does
    not say.
    """
    if cluster.gpu.is_cpu or any(operation.backend != "nccl" for operation in uneven):
        return None
    exchanged = shortest_s = 0.0
    for operation, count in uneven.items():
        exchanged += count * operation.size_bytes * bus_factor(operation.kind, len(operation.ranks))
        shortest_s += count * _shortest_s(cluster, operation, gpus_per_node)
    return exchanged / shortest_s if shortest_s > 0 else None


def _shortest_s(cluster: ClusterSpec, operation: Operation, gpus_per_node: int) -> float:
    node = cluster.node
    between = node.nics * node.nic_bandwidth_bytes_per_s
    nodes = [rank // max(gpus_per_node, 1) for rank in operation.ranks]
    near: Counter[tuple[str, int]] = Counter()
    far: Counter[tuple[str, int]] = Counter()
    for i, row in enumerate(operation.send_counts or ()):
        for j, size_bytes in enumerate(row):
            if i == j or not size_bytes:
                continue
            if nodes[i] // max(node.nvlink.domain_nodes, 1) == nodes[j] // max(node.nvlink.domain_nodes, 1):
                near["sent", i] += size_bytes
                near["received", j] += size_bytes
            else:
                far["sent", nodes[i]] += size_bytes
                far["received", nodes[j]] += size_bytes
    inside_s = max(near.values(), default=0) / _inside_bytes_per_s(cluster, max(Counter(nodes).values()))
    return max(inside_s, max(far.values()) / between if far else 0.0)


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
    ranks = _ends(operation)
    n = len(set(ranks))
    if n < 2 or operation.kind == "barrier" or operation.backend != "nccl":
        return None
    node = cluster.node
    per_node = Counter(rank // max(gpus_per_node, 1) for rank in ranks)
    limits = []
    if max(per_node.values()) > 1:
        inside = _inside_bytes_per_s(cluster, max(per_node.values()))
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
