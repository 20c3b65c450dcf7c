"""The links of a simulated job's servers and fabric, and the paths over them."""

from __future__ import annotations

from collections.abc import Sequence

from netsim.cluster.spec import ClusterSpec
from netsim.errors import ClusterError, OperationError
from netsim.fabric.fabric import Fabric, make_fabric
from netsim.fabric.wiring import Hop, Wiring


class Topology:
    """All links of `nodes` servers of `cluster` with `gpus_per_node` GPUs in use.

    Raises `ClusterError` where the job does not fit the cluster or `[degrade]` names a link that is not
    there.
    """

    def __init__(self, cluster: ClusterSpec, *, nodes: int, gpus_per_node: int) -> None:
        if nodes < 1 or gpus_per_node < 1:
            raise ClusterError(f"{cluster.source}: a job needs at least one node and one GPU per node")
        if gpus_per_node > cluster.node.gpus:
            raise ClusterError(
                f"{cluster.source}: node.gpus = {cluster.node.gpus}: the job wants {gpus_per_node} per node"
            )
        if nodes > 1 and cluster.fabric.kind == "none" and nodes > cluster.node.nvlink.domain_nodes:
            raise ClusterError(
                f'{cluster.source}: fabric.kind = "none": the job wants {nodes} nodes, which need a fabric'
            )
        self.cluster = cluster
        self.nodes = nodes
        self.gpus_per_node = gpus_per_node
        self.world_size = nodes * gpus_per_node
        self.wiring = Wiring(cluster, nodes=nodes, gpus_per_node=gpus_per_node)
        self.links = self.wiring.links
        self.index = self.wiring.index
        self._exits: dict[tuple[int, int], list[Hop]] = {}
        self._entries: dict[tuple[int, int], list[Hop]] = {}
        self.domain_nodes = cluster.node.nvlink.domain_nodes if cluster.node.nvlink.kind != "none" else 1
        self._build_servers()
        self.fabric: Fabric = make_fabric(self.wiring)
        self.wiring.check_degrade()
        self.capacity: list[float] = [link.capacity_bytes_per_s for link in self.links]
        self._alive = [self._nic_alive(i) for i in range(nodes * cluster.node.nics)]

    # Building

    def _build_servers(self) -> None:
        node, gpu_count = self.cluster.node, self.gpus_per_node
        nvlink, pcie = node.nvlink, node.pcie
        self.nvlink_out: list[int] = []
        self.nvlink_in: list[int] = []
        self.wires: dict[tuple[int, int], int] = {}
        self.pcie_up: list[int] = []
        self.pcie_down: list[int] = []
        self.switch_up: list[int] = []
        self.switch_down: list[int] = []
        self.socket_out: list[int] = []
        self.peer_out: list[int] = []
        self.peer_in: list[int] = []
        self.nic_up: list[int] = []
        self.nic_down: list[int] = []
        self.switches = -(-node.gpus // pcie.gpus_per_switch)
        for n in range(self.nodes):
            name = f"node{n}"
            for g in range(gpu_count):
                gpu, switch = f"{name}/gpu{g}", f"{name}/pcie{g // pcie.gpus_per_switch}"
                if nvlink.kind != "none" and not nvlink.wired:
                    center = f"{name}/nvlink" if nvlink.kind == "mesh" else f"{name}/nvswitch"
                    if self.domain_nodes > 1:
                        center = f"domain{n // self.domain_nodes}/nvswitch"
                    self.nvlink_out.append(
                        self.wiring.add(gpu, center, nvlink.bandwidth_bytes_per_s, nvlink.latency_s)
                    )
                    self.nvlink_in.append(
                        self.wiring.add(center, gpu, nvlink.bandwidth_bytes_per_s, nvlink.latency_s)
                    )
                self.pcie_up.append(self.wiring.add(gpu, switch, pcie.bandwidth_bytes_per_s, pcie.latency_s))
                self.pcie_down.append(
                    self.wiring.add(switch, gpu, pcie.bandwidth_bytes_per_s, pcie.latency_s)
                )
            self._lay_wires(n)
            for s in range(self.switches):
                switch, socket = f"{name}/pcie{s}", f"{name}/cpu{self.socket_of_switch(s)}"
                self.switch_up.append(
                    self.wiring.add(switch, socket, pcie.host_bandwidth_bytes_per_s, pcie.latency_s)
                )
                self.switch_down.append(
                    self.wiring.add(socket, switch, pcie.host_bandwidth_bytes_per_s, pcie.latency_s)
                )
                if pcie.peer_bandwidth_bytes_per_s > 0:
                    self.peer_out.append(
                        self.wiring.add(switch, f"{name}/peers", pcie.peer_bandwidth_bytes_per_s, 0.0)
                    )
                    self.peer_in.append(
                        self.wiring.add(f"{name}/peers", switch, pcie.peer_bandwidth_bytes_per_s, 0.0)
                    )
            for s in range(node.sockets):
                # One link out of each socket towards the others.
                self.socket_out.append(
                    self.wiring.add(
                        f"{name}/cpu{s}", f"{name}/interconnect", node.socket_bandwidth_bytes_per_s, 0.3e-6
                    )
                )
            for i in range(node.nics):
                switch = f"{name}/pcie{self.switch_of_nic(i)}"
                self.nic_up.append(
                    self.wiring.add(switch, f"{name}/nic{i}", 2 * pcie.bandwidth_bytes_per_s, pcie.latency_s)
                )
                self.nic_down.append(
                    self.wiring.add(f"{name}/nic{i}", switch, 2 * pcie.bandwidth_bytes_per_s, pcie.latency_s)
                )

    def _lay_wires(self, n: int) -> None:
        """NVLink between two GPUs: all pairs of a mesh, neighbours 2i and 2i + 1 of bridged pairs."""
        nvlink = self.cluster.node.nvlink
        if not nvlink.wired:
            return
        links = nvlink.links_per_pair(self.cluster.node.gpus)
        bandwidth = links * nvlink.link_bandwidth_bytes_per_s * nvlink.efficiency
        for a in range(self.gpus_per_node):
            for b in range(self.gpus_per_node):
                if a != b and (nvlink.kind == "mesh" or a // 2 == b // 2):
                    pair = (n * self.gpus_per_node + a, n * self.gpus_per_node + b)
                    self.wires[pair] = self.wiring.add(
                        f"node{n}/gpu{a}", f"node{n}/gpu{b}", bandwidth, nvlink.latency_s
                    )

    def joined(self, members: Sequence[int]) -> bool:
        """Whether NVLink joins every two of these ranks of one domain."""
        if self.nvlink_out:
            return True
        return all((a, b) in self.wires for a in members for b in members if a != b)

    def socket_of_switch(self, switch: int) -> int:
        """CPU socket that a PCIe switch of a node hangs on."""
        return min(self.cluster.node.sockets - 1, switch * self.cluster.node.sockets // self.switches)

    def switch_of_nic(self, nic: int) -> int:
        """PCIe switch of a node's NIC."""
        node = self.cluster.node
        if node.nics >= node.gpus:
            return (nic * node.gpus // node.nics) // node.pcie.gpus_per_switch
        return nic * self.switches // node.nics

    # Ranks

    def node_of(self, rank: int) -> int:
        """Server of a global rank."""
        return rank // self.gpus_per_node

    def domain_of(self, rank: int) -> int:
        """NVLink domain of a global rank: its server, or several servers with multi-node NVLink."""
        return rank // self.gpus_per_node // self.domain_nodes

    def check_rank(self, rank: int) -> None:
        """Raise `OperationError` for a rank outside the job."""
        if not 0 <= rank < self.world_size:
            raise OperationError(f"rank {rank} is outside the job of {self.world_size} ranks")

    # NICs

    def _nic_alive(self, nic: int) -> bool:
        up, down = self.fabric.port_out[nic], self.fabric.port_in[nic]
        names = (self.nic_up[nic], self.nic_down[nic], up, down)
        return all(self.links[i].capacity_bytes_per_s > 0 for i in names)

    def nics_of(self, rank: int) -> tuple[int, ...]:
        """Global NIC ids nearest to a GPU; where those have failed, the next one of the server that works."""
        node = self.cluster.node
        n, g = divmod(rank, self.gpus_per_node)
        if not node.nics:
            raise OperationError(f"node{n} has no NIC to leave by")
        per = max(1, node.nics // node.gpus)
        first = g * node.nics // node.gpus
        near = tuple(n * node.nics + first + i for i in range(per))
        alive = tuple(i for i in near if self._alive[i])
        if alive:
            return alive
        for step in range(1, node.nics):
            candidate = n * node.nics + (first + step) % node.nics
            if self._alive[candidate]:
                return (candidate,)
        raise OperationError(f"every NIC of node{n} has failed ([degrade] links)")

    def rail_of_rank(self, rank: int) -> int:
        """Rail of a GPU's first NIC."""
        return self.fabric.rail_of(self.nics_of(rank)[0])

    def nic_exit(self, rank: int, nic: int) -> list[Hop]:
        """Hops from a GPU to its NIC's port."""
        found = self._exits.get((rank, nic))
        if found is None:
            found = self._exits[rank, nic] = self._exit(rank, nic)
        return found

    def _exit(self, rank: int, nic: int) -> list[Hop]:
        return [
            (i, 1.0)
            for i in self._to_switch(rank, self.switch_of_nic(nic % self.cluster.node.nics), out=True)
        ] + [(self.nic_up[nic], 1.0)]

    def nic_entry(self, rank: int, nic: int) -> list[Hop]:
        """Hops from a NIC to a GPU."""
        found = self._entries.get((rank, nic))
        if found is None:
            found = self._entries[rank, nic] = self._entry(rank, nic)
        return found

    def _entry(self, rank: int, nic: int) -> list[Hop]:
        switch = self.switch_of_nic(nic % self.cluster.node.nics)
        return [(self.nic_down[nic], 1.0)] + [(i, 1.0) for i in self._to_switch(rank, switch, out=False)]

    def _to_switch(self, rank: int, switch: int, *, out: bool) -> list[int]:
        """Links between a GPU and a PCIe switch of its server, over the sockets where they differ."""
        n, g = divmod(rank, self.gpus_per_node)
        own = g // self.cluster.node.pcie.gpus_per_switch
        result = [self.pcie_up[rank] if out else self.pcie_down[rank]]
        if own == switch:
            return result
        base = n * self.switches
        first, last = (own, switch) if out else (switch, own)
        result += [self.switch_up[base + first], self.switch_down[base + last]]
        a, b = self.socket_of_switch(first), self.socket_of_switch(last)
        if a != b:
            result.append(self.socket_out[n * self.cluster.node.sockets + a])
        return result

    # Paths

    def path(self, source: int, destination: int, *, key: int = 0, pxn: bool = False) -> list[Hop]:
        """Hops of a message between the GPUs of two global ranks; `key` feeds the hash of ECMP.

        Inside an NVLink domain over NVLink, inside a server over PCIe, else over the NICs and the fabric.
        `pxn` lets the message change to the destination's rail over NVLink before it leaves. Raises
        `OperationError` where no path is left.
        """
        if self.nvlink_out and self.domain_of(source) == self.domain_of(destination):
            return [(self.nvlink_out[source], 1.0), (self.nvlink_in[destination], 1.0)]
        wire = self.wires.get((source, destination))
        if wire is not None:
            return [(wire, 1.0)]
        if self.node_of(source) == self.node_of(destination):
            return self._pcie_path(source, destination)
        return self._network_path(source, destination, key, pxn)

    def _pcie_path(self, source: int, destination: int) -> list[Hop]:
        switch = destination % self.gpus_per_node // self.cluster.node.pcie.gpus_per_switch
        hops = self._to_switch(source, switch, out=True)
        own = source % self.gpus_per_node // self.cluster.node.pcie.gpus_per_switch
        if self.peer_out and own != switch:
            base = self.node_of(source) * self.switches
            hops += [self.peer_out[base + own], self.peer_in[base + switch]]
        return [(i, 1.0) for i in hops] + [(self.pcie_down[destination], 1.0)]

    def _network_path(self, source: int, destination: int, key: int, pxn: bool) -> list[Hop]:
        here, there = self.nics_of(source), self.nics_of(destination)
        hops: list[Hop] = []
        sender = source
        if pxn and self.nvlink_out:
            proxy = self.node_of(source) * self.gpus_per_node + destination % self.gpus_per_node
            proxy_nics = self.nics_of(proxy)
            if proxy != source and self.fabric.rail_of(proxy_nics[0]) == self.fabric.rail_of(there[0]) != (
                self.fabric.rail_of(here[0])
            ):
                hops += [(self.nvlink_out[source], 1.0), (self.nvlink_in[proxy], 1.0)]
                sender, here = proxy, proxy_nics
        pairs = max(len(here), len(there))
        for i in range(pairs):
            a, b = here[i % len(here)], there[i % len(there)]
            share = 1.0 / pairs
            hops += [(link, share * w) for link, w in self.nic_exit(sender, a)]
            hops += [(link, share * w) for link, w in self.fabric.route(a, b, key + i)]
            hops += [(link, share * w) for link, w in self.nic_entry(destination, b)]
        return hops

    def latency_s(self, hops: list[Hop]) -> float:
        """Sum of the latencies of a path (the mean over parallel branches)."""
        return sum(self.links[i].latency_s * w for i, w in hops)
