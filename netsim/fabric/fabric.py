"""Fabrics between servers: trees, one switch, tori, direct wiring and custom graphs, with spraying or
hashed ECMP.
"""

from __future__ import annotations

from collections import deque
from typing import Protocol

from netsim.errors import ClusterError, OperationError
from netsim.fabric.wiring import Hop, Wiring


class Fabric(Protocol):
    """What the topology needs of a fabric. NICs are numbered node * nics + index."""

    port_out: list[int]
    port_in: list[int]

    def route(self, source: int, destination: int, key: int) -> list[Hop]:
        """Hops from one NIC to another, ports included."""
        ...

    def rail_of(self, nic: int) -> int:
        """Rail of a NIC: two NICs of one rail are nearer to each other than two of different rails."""
        ...

    def group_of(self, nic: int) -> int:
        """Group of NICs between which routes differ in nothing but the ports."""
        ...


def mix(*values: int) -> int:
    """A 64-bit hash of integers (splitmix64 steps): the same on every machine and run."""
    state = 0x9E3779B97F4A7C15
    for value in values:
        state = (state ^ (value & 0xFFFFFFFFFFFFFFFF)) * 0xBF58476D1CE4E5B9 & 0xFFFFFFFFFFFFFFFF
        state = (state ^ state >> 27) * 0x94D049BB133111EB & 0xFFFFFFFFFFFFFFFF
        state ^= state >> 31
    return state


def make_fabric(wiring: Wiring) -> Fabric:
    """Build the fabric that the cluster describes and add its links to `wiring`."""
    kind = wiring.cluster.fabric.kind
    if kind in ("rail-fat-tree", "fat-tree"):
        return LeafSpine(wiring, rails=kind == "rail-fat-tree")
    if kind == "single-switch":
        return SingleSwitch(wiring)
    return GraphFabric(wiring)


class _Ports:
    """NIC ports towards their switches."""

    def __init__(self, wiring: Wiring) -> None:
        node = wiring.cluster.node
        self.wiring = wiring
        self.nics = node.nics
        self.port_bandwidth = node.nic_bandwidth_bytes_per_s * node.nic_efficiency
        self.port_out: list[int] = []
        self.port_in: list[int] = []

    def add_port(self, nic: int, switch: str) -> None:
        """Wire NIC `nic` to `switch`."""
        name = f"node{nic // self.nics}/nic{nic % self.nics}"
        latency = self.wiring.cluster.node.nic_latency_s
        self.port_out.append(self.wiring.add(name, switch, self.port_bandwidth, latency))
        self.port_in.append(self.wiring.add(switch, name, self.port_bandwidth, latency))

    def rail_of(self, nic: int) -> int:
        """All NICs are equally near."""
        return 0

    def group_of(self, nic: int) -> int:
        """Every NIC has its own routes."""
        return nic


class SingleSwitch(_Ports):
    """Every NIC on one switch that never blocks."""

    def __init__(self, wiring: Wiring) -> None:
        super().__init__(wiring)
        for nic in range(wiring.nodes * self.nics):
            self.add_port(nic, "switch")

    def route(self, source: int, destination: int, key: int) -> list[Hop]:
        """Port to port."""
        return [(self.port_out[source], 1.0), (self.port_in[destination], 1.0)]


class LeafSpine(_Ports):
    """Leaves and spines; `rails` gives every NIC index its own leaves.

    Spraying uses the sum of a leaf's working uplinks as one bundle; ECMP hashes a flow to one working spine.
    """

    def __init__(self, wiring: Wiring, *, rails: bool) -> None:
        super().__init__(wiring)
        fabric = wiring.cluster.fabric
        self.rails = rails
        self.nodes_per_leaf = fabric.nodes_per_leaf
        self.spray = fabric.routing == "spray"
        groups = -(-wiring.nodes // fabric.nodes_per_leaf)
        self.groups = groups
        names = (
            [f"leaf{r}.{g}" for r in range(self.nics) for g in range(groups)]
            if rails
            else [f"leaf{g}" for g in range(groups)]
        )
        self.leaf = [self.leaf_of(nic) for nic in range(wiring.nodes * self.nics)]
        for nic, leaf in enumerate(self.leaf):
            self.add_port(nic, names[leaf])
        self.up: list[list[int]] = []
        self.down: list[list[int]] = []
        self.up_bundle: list[int] = []
        self.down_bundle: list[int] = []
        if len(names) == 1:
            return
        per_leaf = fabric.nodes_per_leaf * (1 if rails else self.nics)
        total = per_leaf * fabric.link_bandwidth_bytes_per_s * wiring.cluster.node.nic_efficiency
        each = total / fabric.oversubscription / fabric.spines
        latency = fabric.hop_latency_s
        for name in names:
            self.up.append([wiring.add(name, f"spine{s}", each, latency) for s in range(fabric.spines)])
            self.down.append([wiring.add(f"spine{s}", name, each, latency) for s in range(fabric.spines)])
        for leaf, name in enumerate(names):
            for bundle, members, ends in (
                (self.up_bundle, self.up[leaf], (name, "spines")),
                (self.down_bundle, self.down[leaf], ("spines", name)),
            ):
                capacity = sum(wiring.links[i].capacity_bytes_per_s for i in members)
                bundle.append(wiring.add(*ends, capacity, latency, bundle=True))

    def leaf_of(self, nic: int) -> int:
        """Index of a NIC's leaf."""
        node, index = divmod(nic, self.nics)
        group = node // self.nodes_per_leaf
        return index * self.groups + group if self.rails else group

    def group_of(self, nic: int) -> int:
        """The leaf; with ECMP the hash tells NICs apart."""
        return self.leaf[nic] if self.spray else nic

    def rail_of(self, nic: int) -> int:
        """NIC index on rails, else the same for all."""
        return nic % self.nics if self.rails else 0

    def route(self, source: int, destination: int, key: int) -> list[Hop]:
        """Through the common leaf, or up to the spines and down."""
        a, b = self.leaf[source], self.leaf[destination]
        if a == b:
            return [(self.port_out[source], 1.0), (self.port_in[destination], 1.0)]
        links = self.wiring.links
        if self.spray:
            up, down = self.up_bundle[a], self.down_bundle[b]
            if not (links[up].capacity_bytes_per_s > 0 and links[down].capacity_bytes_per_s > 0):
                raise OperationError(
                    f"no working path {links[up].name} and {links[down].name} ([degrade] links)"
                )
        else:
            alive = [
                s
                for s in range(len(self.up[a]))
                if links[self.up[a][s]].capacity_bytes_per_s > 0
                and links[self.down[b][s]].capacity_bytes_per_s > 0
            ]
            if not alive:
                raise OperationError(f"no working spine between leaves {a} and {b} ([degrade] links)")
            spine = alive[mix(source, destination, key) % len(alive)]
            up, down = self.up[a][spine], self.down[b][spine]
        return [(self.port_out[source], 1.0), (up, 1.0), (down, 1.0), (self.port_in[destination], 1.0)]


class GraphFabric(_Ports):
    """Torus, direct wiring of all server pairs, or the user's own edges; shortest paths by hop count.

    Spraying splits a flow evenly at every switch over the next hops that lie on a shortest path; ECMP picks
    one by hash.
    """

    def __init__(self, wiring: Wiring) -> None:
        super().__init__(wiring)
        self.fabric = wiring.cluster.fabric
        self.spray = self.fabric.routing == "spray"
        self.edges: dict[str, list[tuple[str, int]]] = {}
        self.reverse: dict[str, list[str]] = {}
        self._routes: dict[tuple[int, int], list[Hop]] = {}
        if self.fabric.kind == "graph":
            self._custom()
        else:
            for nic in range(wiring.nodes * self.nics):
                self.add_port(nic, f"router{nic // self.nics}")
            if self.fabric.kind == "torus":
                self._torus()
            elif self.fabric.kind == "direct-connect":
                for a in range(wiring.nodes):
                    for b in range(a + 1, wiring.nodes):
                        self._edge(f"router{a}", f"router{b}", 1.0 / max(1, wiring.nodes - 1))

    def _edge(
        self, a: str, b: str, share: float = 1.0, *, bandwidth: float = 0.0, latency: float = 0.0
    ) -> None:
        bandwidth = bandwidth or self.fabric.link_bandwidth_bytes_per_s * share
        for x, y in ((a, b), (b, a)):
            link = self.wiring.add(x, y, bandwidth, latency or self.fabric.hop_latency_s)
            if self.wiring.links[link].capacity_bytes_per_s > 0:
                self.edges.setdefault(x, []).append((y, link))
                self.reverse.setdefault(y, []).append(x)

    def _torus(self) -> None:
        dims, count = self.fabric.dimensions, 1
        for d in dims:
            count *= d
        if count != self.wiring.nodes:
            raise ClusterError(
                f"{self.wiring.cluster.source}: fabric.dimensions = {list(dims)}: their product must "
                f"be the job's {self.wiring.nodes} nodes"
            )
        stride = 1
        for size in reversed(dims):
            for n in range(count):
                position = n // stride % size
                if size > 2 or (size == 2 and position == 0):
                    neighbour = n + stride * ((position + 1) % size - position)
                    self._edge(f"router{n}", f"router{neighbour}", 1.0 / (2 * len(dims)))
            stride *= size

    def _custom(self) -> None:
        source, nics = self.wiring.cluster.source, self.wiring.nodes * self.nics
        names = {f"node{i // self.nics}/nic{i % self.nics}": i for i in range(nics)}
        ports: dict[int, tuple[int, int]] = {}
        for i, link in enumerate(self.fabric.links):
            for end in link.ends:
                if end.startswith("node") and end not in names:
                    raise ClusterError(
                        f"{source}: fabric.links[{i}].ends = {list(link.ends)}: {end} is not in a job of "
                        f"{self.wiring.nodes} nodes with {self.nics} NICs each"
                    )
            self._edge(*link.ends, bandwidth=link.bandwidth_bytes_per_s, latency=link.latency_s)
            a, b = (self.wiring.index[f"{x}->{y}"] for x, y in (link.ends, link.ends[::-1]))
            for end, pair in ((link.ends[0], (a, b)), (link.ends[1], (b, a))):
                if end in names:
                    ports[names[end]] = pair
        missing = [name for name, i in names.items() if i not in ports]
        if missing:
            raise ClusterError(f"{source}: fabric.links: no edge at {', '.join(missing[:4])}")
        self.port_out = [ports[i][0] for i in range(nics)]
        self.port_in = [ports[i][1] for i in range(nics)]

    def route(self, source: int, destination: int, key: int) -> list[Hop]:
        """All shortest paths, or the hashed one."""
        cache_key = (source, destination)
        if self.spray and cache_key in self._routes:
            return self._routes[cache_key]
        custom = self.fabric.kind == "graph"
        ends = [
            f"node{i // self.nics}/nic{i % self.nics}" if custom else f"router{i // self.nics}"
            for i in cache_key
        ]
        hops = self._shortest(ends[0], ends[1], mix(source, destination, key))
        if not custom:
            hops = [(self.port_out[source], 1.0), *hops, (self.port_in[destination], 1.0)]
        if self.spray:
            self._routes[cache_key] = hops
        return hops

    def _shortest(self, start: str, end: str, key: int) -> list[Hop]:
        distance = {end: 0}
        queue = deque([end])
        while queue and start not in distance:
            here = queue.popleft()
            for neighbour in self.reverse.get(here, ()):
                if neighbour not in distance:
                    distance[neighbour] = distance[here] + 1
                    queue.append(neighbour)
        if start not in distance:
            raise OperationError(f"no working path from {start} to {end} ([degrade] links)")
        share = {start: 1.0}
        result: list[Hop] = []
        order = [start]
        for here in order:
            if here == end:
                continue
            nexts = [(n, i) for n, i in self.edges[here] if distance.get(n, 1 << 30) == distance[here] - 1]
            if not self.spray:
                nexts = [nexts[mix(key, len(result)) % len(nexts)]]
            for neighbour, link in nexts:
                part = share[here] / len(nexts)
                result.append((link, part))
                if neighbour not in share:
                    share[neighbour] = 0.0
                    order.append(neighbour)
                share[neighbour] += part
        return result
