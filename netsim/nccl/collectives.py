"""Turns operations into parts: which links NCCL's algorithm loads, how much, and how long it takes to
start.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from netsim.errors import OperationError
from netsim.fabric.topology import Topology
from netsim.nccl.messages import EMPTY, MessageParts
from netsim.nccl.search import GroupShape
from netsim.nccl.startup import hops, startup_us, transfer_cap
from netsim.nccl.trees import double_tree_edges
from netsim.nccl.tuning import Environment, Pick, TuningModel
from netsim.nccl.within_node import within_node_of, within_node_time
from netsim.operation import COLLECTIVES, Choice, Operation, bus_factor
from netsim.parts import Part, Shape

WIRE_FACTOR = {"ll": 2.0, "ll128": 16 / 15, "simple": 1.0}
"""Bytes on the wire per byte of data: LL sends a 4-byte flag with every 4 bytes, LL128 8 bytes of 128 (NCCL
`device.h`).
"""


SWITCH_REDUCED_TYPES = frozenset(
    {"float16", "bfloat16", "float32", "float64", "int32", "uint32", "int64", "uint64"}
)
"""Types that NVSwitch adds up (NVIDIA/nccl `src/include/device.h`, ncclNvlsSupported)."""

PLAN_ENTRIES = 2_000_000
"""Bound on the plans kept, in links of all their flows: about 100 MB."""

REFERENCE_PATH_S = 2e-6
"""Latency from NIC port to NIC port that the calibrated hop times contain: two NICs, one leaf."""


@dataclass(frozen=True)
class Group:
    """A communicator's ranks by NVLink domain (or server), in group order.

    `path_us` is what the slowest path between neighbouring domains takes more than the calibrated hop
    contains.
    """

    ranks: tuple[int, ...]
    members: tuple[tuple[int, ...], ...]
    shape: GroupShape
    path_us: float


class Planner:
    """Plans operations on one topology; plans are kept by operation, since training repeats them."""

    def __init__(self, topology: Topology, environment: Mapping[str, str], *, seed: int) -> None:
        self.topology = topology
        self.environment = Environment.parse(environment)
        self.seed = seed
        self._groups: dict[tuple[int, ...], Group] = {}
        self._models: dict[GroupShape, TuningModel] = {}
        self._plans: dict[Operation, tuple[Part, ...]] = {}
        self._plan_size = 0
        self._loads: dict[tuple[str, str, str, tuple[int, ...], int], dict[int, float]] = {}
        self._messages = MessageParts(topology, self.environment, seed=seed)

    def plan(self, op: Operation) -> tuple[Part, ...]:
        """Parts of `op`. Raises `OperationError` for ranks or sizes that make no sense."""
        found = self._plans.get(op)
        if found is None:
            found = tuple(self._plan(op))
            self._plan_size += (
                64 + len(op.ranks) + sum(len(p.shape.links) for p in found if p.shape is not None)
            )
            if self._plan_size > PLAN_ENTRIES:
                self._plans.clear()
                self._loads.clear()
                self._plan_size = 0
            self._plans[op] = found
        return found

    def pick(self, op: Operation) -> Pick:
        """NCCL's choice for a collective of at least two ranks."""
        kind, size = _effective(op)
        narrow = op.dtype.startswith("float8") and COLLECTIVES[kind].reduces
        return self.model(self.group(op.ranks)).choose(
            kind, size, narrow_reduction=narrow, switch_reduces=op.dtype in SWITCH_REDUCED_TYPES
        )

    def link_s(self, op: Operation) -> float:
        """What the busiest link takes to carry `op` alone."""
        capacity = np.array(self.topology.capacity)
        slowest = 0.0
        for part in self.plan(op):
            if part.shape is not None:
                moved = part.shape.loads * part.sizes[part.shape.row]
                total = np.bincount(part.shape.links, weights=moved, minlength=len(capacity))
                slowest = max(slowest, float(np.max(total[total > 0] / capacity[total > 0], initial=0.0)))
        return slowest

    def choice(self, op: Operation) -> Choice:
        """Algorithm, protocol, channels and the idle network's time, for reports."""
        parts = self.plan(op)
        estimate = max((p.latency_ps * 1e-12 + idle_s(p, self.topology) for p in parts), default=0.0)
        factor = bus_factor(op.kind, len(op.ranks))
        if op.kind in ("p2p", "transfer"):
            return Choice(
                algorithm=op.kind,
                protocol="simple",
                channels=1,
                threads=0,
                bus_factor=1.0,
                estimate_s=estimate,
            )
        hosted = self._hosted(op)
        if hosted or len(op.ranks) < 2:
            name = "gloo" if hosted else "copy"
            return Choice(
                algorithm=name, protocol="-", channels=0, threads=0, bus_factor=factor, estimate_s=estimate
            )
        if COLLECTIVES[op.kind].grouped:
            channels = self._messages.channels(self.model(self.group(op.ranks)))
            return Choice(
                algorithm="send_recv",
                protocol="simple",
                channels=channels,
                threads=512,
                bus_factor=factor,
                estimate_s=estimate,
            )
        pick = self.pick(op)
        return Choice(
            algorithm=pick.algorithm,
            protocol=pick.protocol,
            channels=pick.channels,
            threads=pick.threads,
            bus_factor=factor,
            estimate_s=estimate,
        )

    def group(self, ranks: tuple[int, ...]) -> Group:
        """Ranks by NVLink domain, and what NCCL's model needs to know of them."""
        found = self._groups.get(ranks)
        if found is None:
            for rank in ranks:
                self.topology.check_rank(rank)
            if len(set(ranks)) != len(ranks):
                raise OperationError(f"ranks {list(ranks)} repeat")
            by_node: dict[int, list[int]] = {}
            for rank in ranks:
                by_node.setdefault(self.topology.domain_of(rank), []).append(rank)
            sizes = [len(m) for m in by_node.values()]
            joined = all(self.topology.joined(m) for m in by_node.values())
            shape = GroupShape(len(ranks), len(by_node), max(sizes), min(sizes), joined)
            members = tuple(tuple(m) for m in by_node.values())
            found = Group(ranks, members, shape, self._path_us(members))
            self._groups[ranks] = found
        return found

    def _path_us(self, members: tuple[tuple[int, ...], ...]) -> float:
        if len(members) < 2 or not self.topology.cluster.node.nics:
            return 0.0
        worst = 0.0
        for here, there in pairwise(members):
            a, b = self.topology.nics_of(here[0])[0], self.topology.nics_of(there[0])[0]
            worst = max(worst, self.topology.latency_s(self.topology.fabric.route(a, b, 0)))
        return max(0.0, worst - REFERENCE_PATH_S) * 1e6

    def model(self, group: Group) -> TuningModel:
        """NCCL's tuning table for the group's shape."""
        found = self._models.get(group.shape)
        if found is None:
            found = TuningModel(self.topology.cluster, group.shape, self.environment)
            self._models[group.shape] = found
        return found

    def _hosted(self, op: Operation) -> bool:
        """Whether Gloo carries it: between hosts' memories, or where the CPU is the device."""
        return op.backend == "gloo" or self.topology.cluster.gpu.is_cpu

    def _plan(self, op: Operation) -> list[Part]:
        if op.size_bytes < 0:
            raise OperationError(f"{op.kind}: {op.size_bytes} bytes: must not be negative")
        if op.kind == "p2p":
            return self._messages.message(op)
        if op.kind == "transfer":
            return self._messages.host_copy(op)
        traits = COLLECTIVES.get(op.kind)
        if traits is None:
            raise OperationError(
                f"unknown kind {op.kind!r}; allowed: {', '.join(COLLECTIVES)}, p2p, transfer"
            )
        group = self.group(op.ranks)
        if self._hosted(op):
            return self._messages.gloo(op, group.members)
        if group.shape.ranks < 2:
            if traits.in_place:
                return [Part(0, None, EMPTY)]
            return [self._messages.local_copy(op.size_bytes)]
        if traits.grouped:
            return self._messages.exchange(op, self.model(group))
        return [self._collective(op, group)]

    def _collective(self, op: Operation, group: Group) -> Part:
        kind, size = _effective(op)
        pick = self.pick(op)
        model = self.model(group)
        root = op.root if COLLECTIVES[kind].rooted else -1
        key = (kind, pick.algorithm, pick.protocol, op.ranks, root)
        loads = self._loads.get(key)
        if loads is None:
            loads = self._link_loads(kind, pick.algorithm, pick.protocol, group, root)
            self._loads[key] = loads
        factor = bus_factor(kind, group.shape.ranks)
        weight = pick.channels / factor / WIRE_FACTOR[pick.protocol]
        local = within_node_of(model, pick)
        if local is not None:
            started = within_node_time(model, local, kind, pick, size, self._link_s(loads, size))
            latency_us, cap = started.latency_us, started.bytes_per_s
        else:
            latency_us = startup_us(model, kind, pick) + group.path_us * hops(model, kind, pick.algorithm)[1]
            cap = transfer_cap(model, kind, pick, size)
        shape = Shape.single(loads, weight=weight, cap=cap)
        return Part(round(latency_us * 1e6), shape, np.array([float(size)]))

    def _link_s(self, loads: dict[int, float], size_bytes: int) -> float:
        """What the busiest link that works takes alone."""
        capacity = self.topology.capacity
        return size_bytes * max(
            (load / capacity[i] for i, load in loads.items() if capacity[i] > 0), default=0.0
        )

    def _link_loads(
        self, kind: str, algorithm: str, protocol: str, group: Group, root: int
    ) -> dict[int, float]:
        loads = _Loads(self.topology, group, self.seed)
        r, nodes = group.shape.ranks, group.shape.nodes
        factor = bus_factor(kind, r)
        if algorithm == "ring":
            if COLLECTIVES[kind].rooted:
                loads.chain(
                    group.ranks[root] if 0 <= root < r else group.ranks[0], reverse=COLLECTIVES[kind].reduces
                )
            else:
                loads.ring(factor)
        elif algorithm == "tree":
            for members in group.members:
                loads.inside(members, 2.0 * (len(members) - 1) / len(members))
            loads.tree_between(2.0)
        elif algorithm in ("nvls", "nvlstree"):
            for members in group.members:
                if kind == "all_reduce":
                    loads.inside(members, 1.0 + 1.0 / len(members))
                else:
                    loads.inside(members, 1.0)
            if nodes > 1:
                loads.tree_between(2.0)
        else:
            loads.doubling(1.0)
        wire = WIRE_FACTOR[protocol]
        return {link: load * wire for link, load in loads.result.items()}


def _effective(op: Operation) -> tuple[str, int]:
    """torch's barrier is an all_reduce of one element."""
    return ("all_reduce", 4) if op.kind == "barrier" else (op.kind, op.size_bytes)


def idle_s(part: Part, topology: Topology) -> float:
    """Transfer time of a part on an idle network, sharing only with itself."""
    shape = part.shape
    if shape is None or not len(part.sizes):
        return 0.0
    if shape.flows == 1:
        capacity = np.array([topology.capacity[i] for i in shape.links.tolist()])
        rate = min(float(shape.caps[0]), float(np.min(capacity / shape.loads, initial=math.inf)))
        return float(part.sizes[0]) / rate
    capacity = np.array(topology.capacity)
    total = np.bincount(shape.links, weights=shape.loads * part.sizes[shape.row], minlength=len(capacity))
    busy = total > 0
    slowest = float(np.max(total[busy] / capacity[busy], initial=0.0))
    return max(slowest, float(np.max(part.sizes / shape.caps)))


class _Loads:
    """Collects bytes per link per byte of message."""

    def __init__(self, topology: Topology, group: Group, seed: int) -> None:
        self.topology = topology
        self.seed = seed
        self.group = group
        self.result: dict[int, float] = {}
        self._nics: list[list[tuple[int, int]]] | None = None

    def add(self, hops: list[tuple[int, float]], load: float) -> None:
        """Add `load` times each hop's share."""
        result = self.result
        for link, share in hops:
            result[link] = result.get(link, 0.0) + share * load

    @property
    def nics(self) -> list[list[tuple[int, int]]]:
        """Per domain: (rank, NIC) pairs by which its channels leave, sorted by rail."""
        if self._nics is None:
            self._nics = []
            for members in self.group.members:
                pairs: dict[int, int] = {}
                for rank in sorted(members):
                    for nic in self.topology.nics_of(rank):
                        pairs.setdefault(nic, rank)
                self._nics.append([(rank, nic) for nic, rank in sorted(pairs.items())])
        return self._nics

    def inside(self, members: tuple[int, ...], load: float) -> None:
        """Load every member's links inside the domain by `load` in each direction."""
        if len(members) < 2 or load <= 0:
            return
        if self.topology.nvlink_out:
            for rank in members:
                self.add([(self.topology.nvlink_out[rank], 1.0), (self.topology.nvlink_in[rank], 1.0)], load)
            return
        order = sorted(members)
        if self.topology.joined(members):
            # NCCL lays its rings so that they use every wire alike.
            for a in order:
                for b in order:
                    if a != b:
                        self.add([(self.topology.wires[a, b], 1.0)], load / (len(order) - 1))
            return
        # From a load of 1 per GPU on it is a closed ring; below, a chain.
        edges = len(order) if load >= 1.0 else max(1, len(order) - 1)
        per_edge = load * len(order) / edges
        for a, b in zip(order, order[1:] + order[:1]):
            self.add(self.topology.path(a, b), per_edge)

    def ring(self, factor: float) -> None:
        """A ring through all members; between domains it passes by every NIC in turn, channel by channel."""
        nodes = self.group.members
        if len(nodes) == 1:
            self.inside(nodes[0], factor)
            return
        for members in nodes:
            self.inside(members, factor * (len(members) - 1) / len(members))
        for i in range(len(nodes)):
            self.between(i, (i + 1) % len(nodes), factor)

    def chain(self, root: int, *, reverse: bool) -> None:
        """A pipeline from the root through all members and back to nobody."""
        nodes = self.group.members
        first = next(i for i, members in enumerate(nodes) if root in members)
        if len(nodes) == 1 and self.topology.nvlink_out:
            self._chain_inside(nodes[0], root, reverse=reverse)
            return
        for members in nodes:
            self.inside(members, 1.0 if len(nodes) == 1 else (len(members) - 1) / len(members))
        for step in range(len(nodes) - 1):
            a, b = (first + step) % len(nodes), (first + step + 1) % len(nodes)
            self.between(*((b, a) if reverse else (a, b)), 1.0)

    def _chain_inside(self, members: tuple[int, ...], root: int, *, reverse: bool) -> None:
        """Over NVLink: nothing comes to the root, and of the others each is the last of as many channels."""
        ends = (self.topology.nvlink_in, self.topology.nvlink_out)
        receive, send = reversed(ends) if reverse else ends
        passed_on = (len(members) - 2) / max(len(members) - 1, 1)
        self.add([(send[root], 1.0)], 1.0)
        for rank in members:
            if rank != root:
                self.add([(receive[rank], 1.0), (send[rank], passed_on)], 1.0)

    def between(self, a: int, b: int, load: float) -> None:
        """Send `load` from domain a to domain b, split over their NICs, rail by rail."""
        here, there = self.nics[a], self.nics[b]
        rail_of = self.topology.fabric.rail_of
        by_rail: dict[int, list[tuple[int, int]]] = {}
        for pair in there:
            by_rail.setdefault(rail_of(pair[1]), []).append(pair)
        count = max(len(here), len(there))
        part = load / count
        for i in range(count):
            rank, nic = here[i % len(here)]
            same = by_rail.get(rail_of(nic), there)
            peer, peer_nic = same[i % len(same)]
            self.add(self.topology.nic_exit(rank, nic), part)
            self.add(self.topology.fabric.route(nic, peer_nic, self.seed * 64 + i), part)
            self.add(self.topology.nic_entry(peer, peer_nic), part)

    def tree_between(self, load: float) -> None:
        """NCCL's double binary tree over the domains: half of `load` on every edge of both trees, half of
        that each way.
        """
        for parent, child in double_tree_edges(len(self.group.members)):
            self.between(child, parent, load / 4)
            self.between(parent, child, load / 4)

    def doubling(self, load: float) -> None:
        """PAT: in step k every rank exchanges 2^k pieces with the rank 2^k away."""
        count = len(self.group.members)
        distance = 1
        while distance < count:
            pieces = min(distance, count - distance)
            for i in range(count):
                self.between(i, (i + distance) % count, load * pieces / count)
            distance *= 2
