"""Channels and speeds that NCCL's topology search would find for a group of GPUs.

A restatement of the outcome of `ncclTopoCompute` (NVIDIA/nccl `src/graph/search.cc`) for regular nodes, not
of its backtracking; see docs/network.md for what it covers.
"""

from __future__ import annotations

from dataclasses import dataclass

from netsim.cluster.spec import ClusterSpec
from netsim.nccl import constants as k


@dataclass(frozen=True)
class Graph:
    """One of NCCL's graphs: `channels` search channels with GB/s per channel inside and between nodes."""

    channels: int
    bw_intra: float
    bw_inter: float


@dataclass(frozen=True)
class GroupShape:
    """What NCCL's choice depends on, of one communicator.

    `ranks` GPUs on `nodes` NVLink domains (or servers, without multi-node NVLink), at most `local` and at
    least `local_min` of them in one. `joined`: NVLink joins every two of the group in one node.
    """

    ranks: int
    nodes: int
    local: int
    local_min: int
    joined: bool = True

    @property
    def per_node(self) -> float:
        """Ranks per node as a fraction, as NCCL computes it."""
        return self.ranks / self.nodes


@dataclass(frozen=True)
class Graphs:
    """Ring, tree and NVLS graphs, the execution channel count, and the kind of the intra-node path."""

    ring: Graph
    tree: Graph
    nvls: Graph | None
    channels: int
    nvls_channels: int
    nvlink: bool
    plain_tree: bool


def nvlink_total(cluster: ClusterSpec) -> float:
    """NCCL's idea of one GPU's NVLink bandwidth in GB/s."""
    nvlink = cluster.node.nvlink
    if nvlink.kind == "none":
        return 0.0
    capability = cluster.gpu.compute_capability
    table = k.NVLINK_PER_LINK
    per_link = table[100 if capability >= 100 else 90 if capability >= 90 else 86 if capability >= 86 else 80]
    # The table is for the standard link of that generation; other links scale with their line rate.
    standard = 50e9 if capability >= 100 else 14e9 if per_link == 12.0 else 25e9
    return nvlink.links * per_link * nvlink.link_bandwidth_bytes_per_s / standard


def _nvlink_within(cluster: ClusterSpec, local: int) -> float:
    """NCCL's idea in GB/s of the NVLink of one GPU towards the `local` - 1 others of its group in a node."""
    nvlink = cluster.node.nvlink
    total = nvlink_total(cluster)
    if not nvlink.wired or local < 2 or not nvlink.links:
        return total
    return total / nvlink.links * nvlink.links_per_pair(cluster.node.gpus) * (local - 1)


def _duplicate(graph: Graph, capability: int) -> Graph:
    if graph.bw_intra >= 25 and not (capability > 80 and graph.bw_intra < 50 and graph.channels > 4):
        return Graph(graph.channels * 2, graph.bw_intra / 2, graph.bw_inter / 2)
    return graph


def _pack(total: float, choices: tuple[float, ...], limit: int, widest: float) -> tuple[int, float]:
    best = (0, 0.0)
    for speed in choices:
        if speed > widest:
            continue
        if best[0] and speed / best[1] <= 0.49:
            break
        count = min(limit, int(total / speed + 1e-9))
        if count * speed > best[0] * best[1] + 1e-9:
            best = (count, speed)
    return best


def search(cluster: ClusterSpec, shape: GroupShape, version: tuple[int, int]) -> Graphs:
    """Return NCCL's graphs for a group of `shape` on `cluster`."""
    capability = cluster.gpu.compute_capability
    major = cluster.gpu.capability[0]
    nvlink = cluster.node.nvlink
    on_nvlink = nvlink.kind != "none" and shape.joined
    intra_list = k.speeds(k.SPEEDS_INTRA, major, version)
    inter_list = k.speeds(k.SPEEDS_INTER, major, version)
    total = (
        _nvlink_within(cluster, shape.local)
        if on_nvlink
        else cluster.node.pcie.p2p_bandwidth_bytes_per_s / 1e9
    )
    local = shape.local
    if shape.nodes == 1:
        if nvlink.kind == "mesh" and nvlink.ring_channels:
            per_link = total / nvlink.links
            ring = Graph(nvlink.ring_channels.get(local, 1), per_link, per_link)
        else:
            count, speed = _pack(total, intra_list, 32, total)
            if not count:
                count, speed = 1, max(total, 0.1)
            ring = _duplicate(Graph(count, speed, speed), capability)
        tree = ring
    else:
        ring, tree = _inter_graphs(cluster, shape, total, inter_list, capability, version)
    nvls = _nvls_graph(cluster, shape, total, intra_list, ring, version)
    channels = min(k.MAX_CHANNELS, 2 * min(ring.channels, tree.channels))
    if major >= 9 and shape.nodes > 1 and ring.bw_intra > 45 and channels < 16:
        channels *= 2
    nvls_channels = 16 if major == 9 else 24 if shape.nodes == 1 else 32
    return Graphs(ring, tree, nvls, channels, nvls_channels, on_nvlink, major >= 9)


def _inter_graphs(
    cluster: ClusterSpec,
    shape: GroupShape,
    total: float,
    choices: tuple[float, ...],
    capability: int,
    version: tuple[int, int],
) -> tuple[Graph, Graph]:
    node = cluster.node
    on_nvlink = node.nvlink.kind != "none" and shape.joined
    nics, nic = local_nics(cluster, shape.local)
    best = (0, 0.0)
    for speed in choices:
        if speed > nic + 1e-9:
            continue
        if best[0] and speed / best[1] <= 0.49:
            break
        count = nics * max(1, int(nic / speed + 1e-9))
        if shape.local > 1:
            # Every GPU passes on all channels but the one that leaves the server by its NIC.
            share = (shape.local - 1) / shape.local
            if not on_nvlink or int(total / (speed * share) + 1e-9) < shape.local:
                share = 1.0
            count = min(count, int(total / (speed * share) + 1e-9))
        count = min(count, 32)
        # Every NIC gets the same number of channels.
        count = count // nics * nics if count > nics else count
        if count * speed > best[0] * best[1] + 1e-9:
            best = (count, speed)
    count, speed = best if best[0] else (1, choices[-1])
    if not on_nvlink and shape.local > 1:
        speed = min(speed, total / max(1, count))
    ring = _duplicate(Graph(count, speed, speed), capability)
    bw_intra = ring.bw_intra
    if shape.local > 1 and on_nvlink and capability < 90:
        # Second pass of the search: trees raise the speed inside the node, up to twice that between nodes.
        room = total / (ring.channels * (shape.local - 1) / shape.local)
        for candidate in sorted(k.speeds(k.SPEEDS_INTRA, capability // 10, version)):
            if candidate <= room and candidate < 2 * ring.bw_inter:
                bw_intra = max(bw_intra, candidate)
    return ring, Graph(ring.channels, bw_intra, ring.bw_inter)


def local_nics(cluster: ClusterSpec, local: int) -> tuple[int, float]:
    """Number of NICs that `local` GPUs of a node use, and GB/s of one as NCCL sees it (PCIe caps it)."""
    node = cluster.node
    pcie = k.PCIE_X16[node.pcie.generation] * node.pcie.lanes / 16
    if node.nics >= node.gpus:
        nics = local * (node.nics // node.gpus)
    else:
        nics = max(1, min(node.nics, local))
    speed = node.nic_bandwidth_bytes_per_s / 1e9
    if cluster.gpu.compute_capability < 100 or node.cpu_vendor != "arm":
        speed = min(speed, pcie)
    return nics, speed


def _nvls_graph(
    cluster: ClusterSpec,
    shape: GroupShape,
    total: float,
    choices: tuple[float, ...],
    ring: Graph,
    version: tuple[int, int],
) -> Graph | None:
    if not cluster.node.nvlink.multicast or cluster.gpu.capability[0] < 9 or shape.local < 2:
        return None
    heads = min(32, shape.local)
    if shape.nodes > 1:
        heads = min(heads, local_nics(cluster, shape.local)[0])
    # Each channel's head GPU carries twice the channel's speed, every other GPU once.
    room = total / (heads + 1)
    fitting = [s for s in choices if s <= room + 1e-9]
    speed = max(fitting) if fitting else room
    if shape.nodes > 1:
        return Graph(heads, speed, min(ring.bw_inter * ring.channels / heads, 2 * speed))
    higher = [s for s in choices if s < 2 * speed]
    return Graph(heads, speed, max(higher) if higher else speed)
