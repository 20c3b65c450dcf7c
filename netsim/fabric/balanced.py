"""Link loads of balanced all_to_alls between servers, without walking every pair of ranks."""

from __future__ import annotations

from netsim.fabric.topology import Topology
from netsim.fabric.wiring import Hop


def balanced_between(
    topology: Topology, domains: list[list[int]], *, pxn: bool, seed: int
) -> dict[int, float]:
    """Return the load of every link if each rank sends one unit to every rank of the other domains.

    The same as adding up `Topology.path` over all pairs: what leaves a server by the same GPU (PXN) for one
    destination, and NICs that the fabric cannot tell apart, are counted together.
    """
    fabric = topology.fabric
    loads: dict[int, float] = {}
    exits: dict[tuple[int, int], float] = {}
    entries: dict[tuple[int, int], float] = {}
    between: dict[tuple[int, int], list[float]] = {}
    everyone = [rank for members in domains for rank in members]
    nics = {rank: topology.nics_of(rank) for rank in everyone}
    for members in domains:
        own = set(members)
        far = [rank for rank in everyone if rank not in own]
        for server in _by_server(topology, members):
            plans: dict[tuple[int, int], tuple[list[tuple[int, float]], list[tuple[int, int]]]] = {}
            used: dict[tuple[int, int], int] = {}
            for destination in far:
                there = nics[destination]
                key = (destination % topology.gpus_per_node, fabric.rail_of(there[0]))
                if key not in plans:
                    plans[key] = _senders(topology, server, *key, pxn=pxn)
                used[key] = used.get(key, 0) + 1
                for sender, count in plans[key][0]:
                    here = nics.get(sender) or topology.nics_of(sender)
                    pairs = max(len(here), len(there))
                    share = count / pairs
                    for i in range(pairs):
                        a, b = here[i % len(here)], there[i % len(there)]
                        exits[sender, a] = exits.get((sender, a), 0.0) + share
                        entries[destination, b] = entries.get((destination, b), 0.0) + share
                        sample = between.setdefault((fabric.group_of(a), fabric.group_of(b)), [0.0, a, b])
                        sample[0] += share
            for key, times in used.items():
                for source, proxy in plans[key][1]:
                    hops = [(topology.nvlink_out[source], 1.0), (topology.nvlink_in[proxy], 1.0)]
                    _add(loads, hops, float(times))
    for (rank, nic), leaving in exits.items():
        _add(loads, [*topology.nic_exit(rank, nic), (fabric.port_out[nic], 1.0)], leaving)
    for (rank, nic), arriving in entries.items():
        _add(loads, [*topology.nic_entry(rank, nic), (fabric.port_in[nic], 1.0)], arriving)
    for total, first, second in between.values():
        _add(loads, fabric.route(int(first), int(second), seed)[1:-1], total)
    return loads


def _add(loads: dict[int, float], hops: list[Hop], load: float) -> None:
    for link, share in hops:
        loads[link] = loads.get(link, 0.0) + share * load


def _by_server(topology: Topology, members: list[int]) -> list[list[int]]:
    servers: dict[int, list[int]] = {}
    for rank in members:
        servers.setdefault(topology.node_of(rank), []).append(rank)
    return list(servers.values())


def _senders(
    topology: Topology, server: list[int], local: int, rail: int, *, pxn: bool
) -> tuple[list[tuple[int, float]], list[tuple[int, int]]]:
    """GPUs by which a server's ranks reach a destination of one local index and rail, with how many each
    serves, and the (rank, proxy) pairs that change GPU over NVLink for it.
    """
    proxy = topology.node_of(server[0]) * topology.gpus_per_node + local
    usable = pxn and bool(topology.nvlink_out) and topology.rail_of_rank(proxy) == rail
    counts: dict[int, float] = {}
    changed: list[tuple[int, int]] = []
    for rank in server:
        if usable and rank != proxy and topology.rail_of_rank(rank) != rail:
            changed.append((rank, proxy))
            counts[proxy] = counts.get(proxy, 0.0) + 1.0
        else:
            counts[rank] = counts.get(rank, 0.0) + 1.0
    return list(counts.items()), changed
