"""Price of collectives among the hosts' memories (Gloo), without contention."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class HostNetwork:
    """Latency and bandwidth between two processes' host memories.

    Same node: loopback TCP; other nodes: the management Ethernet. The defaults are plain figures of current
    servers (about 25 us for a Gloo round over loopback and 3 GB/s per stream; 50 us and 1.25 GB/s for 10
    GbE), not a measurement of any cluster: Gloo traffic of training jobs is small and off the device's path.
    """

    local_latency_ps: int = 25_000_000
    local_bandwidth_bytes_per_s: float = 3e9
    remote_latency_ps: int = 50_000_000
    remote_bandwidth_bytes_per_s: float = 1.25e9

    def cost_ps(self, kind: str, ranks: int, size_bytes: int, *, one_node: bool) -> int:
        """Time of a Gloo collective: steps x latency + bytes on the slowest link / bandwidth.

        Ring algorithms for all_reduce, all_gather, reduce_scatter (2(n-1) or n-1 steps; Thakur et al. 2005),
        binomial trees for the rooted ones and the barrier (ceil(log2 n) steps), pairwise exchange for
        all_to_all.
        """
        if ranks < 2:
            return 1_000_000
        latency_ps = self.local_latency_ps if one_node else self.remote_latency_ps
        bandwidth = self.local_bandwidth_bytes_per_s if one_node else self.remote_bandwidth_bytes_per_s
        tree_steps = (ranks - 1).bit_length()
        if kind == "all_reduce":
            steps, volume = 2 * (ranks - 1), 2.0 * (ranks - 1) / ranks * size_bytes
        elif kind in ("all_gather", "reduce_scatter", "all_to_all"):
            steps, volume = ranks - 1, (ranks - 1) / ranks * size_bytes
        elif kind in ("gather", "scatter"):
            steps, volume = tree_steps, (ranks - 1) / ranks * size_bytes
        elif kind == "barrier":
            steps, volume = 2 * tree_steps, 0.0
        elif kind == "p2p":
            steps, volume = 1, float(size_bytes)
        else:
            steps, volume = tree_steps, float(tree_steps * size_bytes)
        return steps * latency_ps + round(volume / bandwidth * 1e12)
