"""Messages that are separate flows: send/recv, all_to_all, gather, scatter, host copies and Gloo."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from netsim.cluster.spec import WithinNodeTiming
from netsim.errors import OperationError
from netsim.fabric.balanced import balanced_between
from netsim.fabric.topology import Topology
from netsim.fabric.wiring import Hop
from netsim.nccl.tuning import Environment, TuningModel
from netsim.nccl.within_node import Start, start_of
from netsim.operation import Operation
from netsim.parts import Part, Shape

NET_BANDWIDTH_PER_CHANNEL = 14e9
"""NCCL_P2P_PER_CHANNEL_NET_BW: a message gets ceil(NIC bandwidth / this) channels (NVIDIA/nccl
`src/graph/paths.cc`).
"""

EMPTY = np.zeros(0)


def _loads(hops: list[Hop], factor: float = 1.0) -> dict[int, float]:
    result: dict[int, float] = {}
    for link, share in hops:
        result[link] = result.get(link, 0.0) + share * factor
    return result


def _add(loads: dict[int, float], more: dict[int, float]) -> None:
    for link, load in more.items():
        loads[link] = loads.get(link, 0.0) + load


@dataclass(frozen=True)
class _PeerClass:
    """The peers inside, or outside, of every rank of a balanced all_to_all: loads per byte of one piece."""

    remote: bool
    hops: list[Hop]
    loads: dict[int, float]
    most_peers: int


class MessageParts:
    """Plans messages on one topology."""

    def __init__(self, topology: Topology, environment: Environment, *, seed: int) -> None:
        self.topology = topology
        self.cluster = topology.cluster
        self.environment = environment
        self.seed = seed
        self.pxn = self.cluster.nccl.pxn and environment.pxn
        self._classes: dict[tuple[int, ...], list[_PeerClass]] = {}
        self.spray = self.cluster.fabric.routing == "spray"
        self._pcie_links = frozenset((*topology.pcie_up, *topology.pcie_down))
        self.message_timing = self.cluster.nccl.within_node.get("send_recv")
        self.exchange_timing = self.cluster.nccl.within_node.get("all_to_all")

    def local_copy(self, size_bytes: int) -> Part:
        """A group of one: a copy inside the GPU's memory, read and written."""
        seconds = 2.0 * size_bytes / (0.85 * self.cluster.gpu.memory_bandwidth_bytes_per_s)
        return Part(round((3e-6 + seconds) * 1e12), None, EMPTY)

    def message(self, op: Operation) -> list[Part]:
        """One send with its recv."""
        self.topology.check_rank(op.source)
        self.topology.check_rank(op.destination)
        if op.backend == "gloo" or self.cluster.gpu.is_cpu:
            apart = self.topology.node_of(op.source) != self.topology.node_of(op.destination)
            return [self._host_time("gloo_p2p", 1, 1.0, op.size_bytes, apart)]
        if op.source == op.destination:
            return [self.local_copy(op.size_bytes)]
        hops = self.topology.path(op.source, op.destination, key=self.seed, pxn=self.pxn)
        remote = self.topology.domain_of(op.source) != self.topology.domain_of(op.destination)
        latency = self._latency_us(hops, remote)
        cap = self._cap(remote)
        timing = self.message_timing
        if not remote and timing is not None:
            start = self._start_inside(timing, _loads(hops), op.size_bytes, peers=1, pieces=1.0)
            latency, cap = start.latency_us, start.bytes_per_s
        shape = Shape.single(_loads(hops), weight=self._connections(remote), cap=cap)
        return [Part(round(latency * 1e6), shape, np.array([float(op.size_bytes)]))]

    def _start_inside(
        self,
        timing: WithinNodeTiming,
        loads: dict[int, float],
        size_bytes: float,
        *,
        peers: int,
        pieces: float,
    ) -> Start:
        """Start of send/recv inside a node; links carry `loads` per byte of a peer's `size_bytes`."""
        capacity = self.topology.capacity
        link_s = size_bytes * max((v / capacity[i] for i, v in loads.items() if capacity[i] > 0), default=0.0)
        line = self.cluster.node.nvlink.efficiency
        if not self._over_nvlink(loads):
            line = 1.0
            busiest = max((load for link, load in loads.items() if link in self._pcie_links), default=0.0)
            link_s = max(link_s, size_bytes * busiest / self.cluster.node.pcie.p2p_bandwidth_bytes_per_s)
        return start_of(
            timing,
            timing.base_us + (peers - 1) * timing.hop_us,
            link_s * pieces * line / timing.efficiency,
            link_s,
            size_bytes,
        )

    def _over_nvlink(self, loads: dict[int, float]) -> bool:
        """Whether all of it goes over NVLink, not over PCIe."""
        wires = set(self.topology.wires.values())
        return bool(self.topology.nvlink_out) or all(link in wires for link in loads)

    def _latency_us(self, hops: list[Hop], remote: bool) -> float:
        nccl = self.cluster.nccl
        return (nccl.p2p_inter_us if remote else nccl.p2p_base_us) + self.topology.latency_s(hops) * 1e6

    def _peers_us(self, pairs: list[tuple[int, int, float]]) -> float:
        """Time that the busiest rank's further peers add; NCCL has no model of it, the figure is an
        estimate.
        """
        return self.cluster.nccl.p2p_peer_us * max(0.0, self._peers(pairs) - 1)

    def _peers(self, pairs: list[tuple[int, int, float]]) -> float:
        """Peers of the busiest rank."""
        peers: dict[int, int] = {}
        for a, b, _ in pairs:
            peers[a] = peers.get(a, 0) + 1
            peers[b] = peers.get(b, 0) + 1
        # An all_to_all sends and receives at once, so a peer counts half each way.
        most = max(peers.values(), default=0)
        return most / 2 if len({a for a, _, _ in pairs} & {b for _, b, _ in pairs}) else most

    def _connections(self, remote: bool) -> float:
        """Channels per peer."""
        if not remote:
            return 2.0
        return max(1.0, -(-self.cluster.node.nic_bandwidth_bytes_per_s // NET_BANDWIDTH_PER_CHANNEL))

    def _cap(self, remote: bool) -> float:
        node = self.cluster.node
        if remote:
            line = node.nic_bandwidth_bytes_per_s * node.nic_efficiency * max(1, node.nics // node.gpus)
            return line * self.cluster.nccl.p2p_inter_efficiency
        if self.topology.nvlink_out:
            links = 2 if node.nvlink.kind == "mesh" else node.nvlink.links
            return node.nvlink.link_bandwidth_bytes_per_s * links * node.nvlink.efficiency
        if self.topology.wires:
            # The wires bound those that they join, PCIe's own links the others.
            per_pair = node.nvlink.links_per_pair(node.gpus)
            return node.nvlink.link_bandwidth_bytes_per_s * per_pair * node.nvlink.efficiency
        return node.pcie.p2p_bandwidth_bytes_per_s

    def channels(self, model: TuningModel) -> int:
        """Channels that grouped send/recv uses, for reports."""
        channels = 1
        while channels < model.channels:
            channels *= 2
        limit = self.environment.p2p_channels
        return min(channels, limit) if limit else channels

    def exchange(self, op: Operation, model: TuningModel) -> list[Part]:
        """all_to_all, gather or scatter as grouped send/recv."""
        ranks = op.ranks
        count = len(ranks)
        pairs: list[tuple[int, int, float]] = []
        if op.kind == "all_to_all":
            if op.send_counts is None:
                return self._balanced(ranks, op.size_bytes / count)
            if len(op.send_counts) != count or any(len(row) != count for row in op.send_counts):
                raise OperationError(f"all_to_all: send_counts must be {count} x {count}")
            for i, row in enumerate(op.send_counts):
                pairs += [
                    (ranks[i], ranks[j], float(size)) for j, size in enumerate(row) if size > 0 and i != j
                ]
        else:
            root = ranks[op.root if 0 <= op.root < count else 0]
            piece = op.size_bytes / count
            for rank in ranks:
                if rank != root and piece > 0:
                    pairs.append((rank, root, piece) if op.kind == "gather" else (root, rank, piece))
        return self._flows(pairs, op_kind=op.kind)

    def _flows(self, pairs: list[tuple[int, int, float]], *, op_kind: str) -> list[Part]:
        if not pairs:
            return [Part(round(self.cluster.nccl.p2p_base_us * 1e6), None, EMPTY)]
        parts = []
        for remote in (False, True):
            chosen = [
                p for p in pairs if (self.topology.domain_of(p[0]) != self.topology.domain_of(p[1])) == remote
            ]
            if not chosen:
                continue
            paths = [self.topology.path(a, b, key=self.seed, pxn=self.pxn) for a, b, _ in chosen]
            loads = [_loads(p) for p in paths]
            caps = [self._cap(remote)] * len(paths)
            timing = self.exchange_timing
            if not remote and timing is not None:
                total: dict[int, float] = {}
                for own, (_, _, size) in zip(loads, chosen):
                    _add(total, {link: load * size for link, load in own.items()})
                peers = self._peers(chosen)
                pieces = 1.0 + timing.tail / peers if op_kind == "all_to_all" else 1.0
                piece = max(size for _, _, size in chosen)
                each = {link: load / piece for link, load in total.items()}
                start = self._start_inside(timing, each, piece, peers=math.ceil(peers), pieces=pieces)
                latency = start.latency_us
                # All flows end with those of the busiest link.
                caps = [size / piece * start.bytes_per_s for _, _, size in chosen]
            else:
                latency = max(self._latency_us(p, remote) for p in (paths[0], paths[-1]))
                latency += self._peers_us(pairs)
            shape = Shape.many(loads, weights=[self._connections(remote)] * len(paths), caps=caps)
            parts.append(Part(round(latency * 1e6), shape, np.array([s for _, _, s in chosen])))
        return parts

    def _balanced(self, ranks: tuple[int, ...], piece: float) -> list[Part]:
        """All pairs with the same size.

        Sprayed flows of one class are equal in the network's eyes: one coflow for the peers inside, one for
        the others.
        """
        if piece <= 0:
            return self._flows([], op_kind="all_to_all")
        if not self.spray:
            return self._flows([(a, b, piece) for a in ranks for b in ranks if a != b], op_kind="all_to_all")
        classes = self._classes.get(ranks)
        if classes is None:
            classes = self._classes[ranks] = self._balanced_classes(ranks)
        return [self._balanced_part(each, piece, len(ranks)) for each in classes]

    def _balanced_part(self, each: _PeerClass, piece: float, ranks: int) -> Part:
        timing = self.exchange_timing
        if not each.remote and timing is not None:
            pieces = 1.0 + timing.tail / each.most_peers
            start = self._start_inside(timing, each.loads, piece, peers=each.most_peers, pieces=pieces)
            latency_us, cap = start.latency_us, start.bytes_per_s
        else:
            latency_us = self._latency_us(each.hops, each.remote) + self.cluster.nccl.p2p_peer_us * (
                ranks - 2
            )
            cap = self._cap(each.remote)
        shape = Shape.single(each.loads, weight=self._connections(each.remote), cap=cap)
        return Part(round(latency_us * 1e6), shape, np.array([piece]))

    def _balanced_classes(self, ranks: tuple[int, ...]) -> list[_PeerClass]:
        topology = self.topology
        domains: dict[int, list[int]] = {}
        for rank in ranks:
            domains.setdefault(topology.domain_of(rank), []).append(rank)
        samples: dict[bool, tuple[int, int]] = {}
        inside: dict[int, float] = {}
        for members in domains.values():
            if len(members) > 1:
                samples[False] = (members[0], members[1])
                _add(inside, self._loads_inside(members))
        loads = {False: inside}
        if len(domains) > 1:
            first, second = list(domains.values())[:2]
            samples[True] = (first[0], second[0])
            loads[True] = balanced_between(topology, list(domains.values()), pxn=self.pxn, seed=self.seed)
        classes = []
        for remote, (a, b) in sorted(samples.items()):
            hops = topology.path(a, b, key=self.seed, pxn=self.pxn)
            most = max(len(members) for members in domains.values()) - 1
            classes.append(_PeerClass(remote, hops, loads[remote], len(ranks) - 1 - most if remote else most))
        return classes

    def _loads_inside(self, members: list[int]) -> dict[int, float]:
        topology = self.topology
        if topology.nvlink_out:
            links = [i for rank in members for i in (topology.nvlink_out[rank], topology.nvlink_in[rank])]
            return dict.fromkeys(links, float(len(members) - 1))
        loads: dict[int, float] = {}
        for a in members:
            for b in members:
                if a != b:
                    _add(loads, _loads(topology.path(a, b)))
        return loads

    def host_copy(self, op: Operation) -> list[Part]:
        """A copy between a GPU and its host's memory over PCIe."""
        if op.direction not in ("h2d", "d2h") or len(op.ranks) != 1:
            raise OperationError(
                f'transfer: direction {op.direction!r} must be "h2d" or "d2h" and ranks one rank'
            )
        rank = op.ranks[0]
        self.topology.check_rank(rank)
        node, g = divmod(rank, self.topology.gpus_per_node)
        switch = node * self.topology.switches + g // self.cluster.node.pcie.gpus_per_switch
        if op.direction == "h2d":
            links = [self.topology.switch_down[switch], self.topology.pcie_down[rank]]
        else:
            links = [self.topology.pcie_up[rank], self.topology.switch_up[switch]]
        pcie = self.cluster.node.pcie
        cap = pcie.bandwidth_bytes_per_s if op.pinned else pcie.pageable_bandwidth_bytes_per_s
        latency = sum(self.topology.links[i].latency_s for i in links) + 1e-6
        shape = Shape.single(dict.fromkeys(links, 1.0), weight=1.0, cap=cap)
        return [Part(round(latency * 1e12), shape, np.array([float(op.size_bytes)]))]

    def gloo(self, op: Operation, members: tuple[tuple[int, ...], ...]) -> list[Part]:
        """A collective among host memories: rings of pieces over the first NIC of each server."""
        count = len(op.ranks)
        steps = {"all_reduce": 2 * (count - 1), "barrier": count.bit_length()}.get(op.kind, max(0, count - 1))
        factor = 2.0 * (count - 1) / count if op.kind == "all_reduce" else 1.0
        size = 0 if op.kind == "barrier" else op.size_bytes
        key = f"gloo_{op.kind}"
        timing = key if key in self.cluster.nccl.timing else "gloo"
        return [self._host_time(timing, steps, factor, size, len(members) > 1)]

    def _host_time(self, key: str, steps: int, factor: float, size_bytes: int, apart: bool) -> Part:
        """Time of `steps` Gloo steps that move `factor` times the size, over memory or the NIC; loads no
        links.
        """
        t = self.cluster.nccl.timing[key]
        hop = t.inter_us if apart else t.intra_us
        memory = self.cluster.node.pcie.p2p_bandwidth_bytes_per_s
        rate = min(memory, self.cluster.node.nic_bandwidth_bytes_per_s or memory) if apart else memory
        seconds = (t.base_us + steps * hop) * 1e-6 + factor * size_bytes / (rate * t.efficiency)
        return Part(round(seconds * 1e12), None, EMPTY)
