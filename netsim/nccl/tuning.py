"""NCCL's tuning model: bandwidth and latency of every algorithm and protocol, and the choice by size.

Restates `ncclTopoTuneModel`, `ncclTopoGetAlgoTime` (NVIDIA/nccl `src/graph/tuning.cc`) and `topoGetAlgoInfo`
(`src/enqueue.cc`) at 2.30.7. Its times choose; they do not predict (docs/network.md).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from netsim.cluster.spec import ClusterSpec
from netsim.errors import ClusterError
from netsim.nccl import constants as k
from netsim.nccl.search import Graphs, GroupShape, search
from netsim.operation import COLLECTIVES

ORDER = tuple((a, p) for a in ("tree", "ring", "nvls", "nvlstree", "pat") for p in k.PROTOCOLS)
_BY_KIND = {
    "all_reduce": ("tree", "ring", "nvls", "nvlstree"),
    "all_gather": ("ring", "nvls", "pat"),
    "reduce_scatter": ("ring", "nvls", "pat"),
    "broadcast": ("ring",),
    "reduce": ("ring",),
}


@dataclass(frozen=True)
class Pick:
    """What NCCL runs: algorithm, protocol, channels and threads per channel, with the model's time."""

    algorithm: str
    protocol: str
    channels: int
    threads: int
    time_us: float


@dataclass(frozen=True)
class Environment:
    """The NCCL_* variables that change the choice."""

    algorithms: frozenset[str] | None = None
    protocols: frozenset[str] | None = None
    min_channels: int = 1
    max_channels: int = k.MAX_CHANNELS
    nvls: bool = True
    pxn: bool = True
    net_overhead_us: float | None = None
    p2p_channels: int | None = None

    @staticmethod
    def parse(variables: Mapping[str, str]) -> Environment:
        """Read NCCL_ALGO, NCCL_PROTO, NCCL_MIN/MAX_NCHANNELS (and CTAS), NCCL_NVLS_ENABLE,
        NCCL_PXN_DISABLE, ...

        Raises `ClusterError` for a value that NCCL does not know. Per-function lists ("allreduce:ring;...")
        use the entry of all_reduce or the one without a function.
        """

        def number(*names: str) -> int | None:
            for name in names:
                text = variables.get(name, "")
                if text:
                    try:
                        return int(text, 0)
                    except ValueError:
                        raise ClusterError(f"environment: {name} = {text!r}: must be an integer") from None
            return None

        low = number("NCCL_MIN_NCHANNELS", "NCCL_MIN_CTAS", "NCCL_MIN_NRINGS")
        high = number("NCCL_MAX_NCHANNELS", "NCCL_MAX_CTAS", "NCCL_MAX_NRINGS")
        overhead = number("NCCL_NET_OVERHEAD")
        return Environment(
            algorithms=_names(variables.get("NCCL_ALGO", ""), k.ALGORITHMS, "NCCL_ALGO"),
            protocols=_names(variables.get("NCCL_PROTO", ""), k.PROTOCOLS, "NCCL_PROTO"),
            min_channels=max(1, low or 1),
            max_channels=min(k.MAX_CHANNELS, max(1, high or k.MAX_CHANNELS)),
            nvls=number("NCCL_NVLS_ENABLE") != 0,
            pxn=not number("NCCL_PXN_DISABLE"),
            net_overhead_us=None if overhead is None or overhead < 0 else overhead / 1000.0,
            p2p_channels=number("NCCL_MAX_P2P_NCHANNELS"),
        )


def _names(text: str, known: tuple[str, ...], variable: str) -> frozenset[str] | None:
    parts = [p.strip() for p in text.split(";") if p.strip()]
    if not parts:
        return None
    chosen = next((p for p in parts if ":" not in p or p.lower().startswith("allreduce:")), None)
    if chosen is None:
        return None
    body = chosen.split(":")[-1].strip()
    negate = body.startswith("^")
    names = [n.strip().lower().replace("_", "") for n in body.lstrip("^").split(",") if n.strip()]
    plain = {n.replace("_", ""): n for n in known}
    for name in names:
        if name not in plain:
            raise ClusterError(f"environment: {variable} = {text!r}: {name!r} is none of {', '.join(known)}")
    selected = frozenset(plain[n] for n in names)
    return frozenset(known) - selected if negate else selected


class TuningModel:
    """NCCL's table for one communicator shape on one cluster."""

    def __init__(self, cluster: ClusterSpec, shape: GroupShape, environment: Environment) -> None:
        self.cluster = cluster
        self.shape = shape
        self.environment = environment
        self.version = k.parse_version(cluster.nccl.version)
        self.graphs: Graphs = search(cluster, shape, self.version)
        self.channels = min(max(self.graphs.channels, environment.min_channels), environment.max_channels)
        major = cluster.gpu.capability[0]
        self._row = 3 if major >= 10 else 2 if major == 9 else 1 if major == 8 else 0
        self._column = min(shape.nodes, 3) - 1
        self._ll_cap = k.LL_CAP_ONE_NODE[self._row]
        if shape.nodes > 1:
            caps = k.LL_CAP_AMD if cluster.node.cpu_vendor == "amd" else k.LL_CAP_OTHER
            self._ll_cap = caps[self._column - 1]
        overhead = environment.net_overhead_us
        self._overhead = k.NET_OVERHEAD_US[cluster.node.cpu_vendor] if overhead is None else overhead
        self._table: dict[tuple[str, str, str], tuple[float, float]] = {}

    def _per_channel(self, name: str, table: tuple[tuple[float, ...], ...]) -> float:
        row = k.blackwell_row(table, name, self.version) if self._row == 3 else table[self._row]
        return row[self._column]

    def steps(self, kind: str) -> int:
        """Ring steps of a collective."""
        return COLLECTIVES[kind].ring_steps(self.shape.ranks)

    def available(self, kind: str, algorithm: str, protocol: str, *, forced: bool = True) -> bool:
        """Whether NCCL may use this pair; `forced` applies NCCL_ALGO and NCCL_PROTO."""
        shape, env = self.shape, self.environment
        if algorithm not in _BY_KIND.get(kind, ()) or (
            algorithm in ("nvls", "nvlstree", "pat") and protocol != "simple"
        ):
            return False
        if forced and env.algorithms is not None and algorithm not in env.algorithms:
            return False
        if forced and env.protocols is not None and protocol not in env.protocols:
            return False
        if algorithm in ("nvls", "nvlstree"):
            if self.graphs.nvls is None or not env.nvls or self.graphs.nvls.channels < 2:
                return False
            if (algorithm == "nvlstree") != (shape.nodes > 1):
                return False
            if kind != "all_reduce" and shape.local > 32:
                return False
        if algorithm == "pat" and (shape.local > 1 or shape.nodes == 1 or self.version < (2, 23)):
            return False
        if protocol == "ll128":
            if self.cluster.gpu.capability[0] < 7 or not self.graphs.nvlink:
                return False
            if shape.local > 1 and self.cluster.gpu.compute_capability in (86, 89):
                return False
        return True

    def bandwidth(self, kind: str, algorithm: str, protocol: str) -> float:
        """Algorithm bandwidth in GB/s for large messages; 0 where the pair is not available."""
        return self._entry(kind, algorithm, protocol)[0]

    def latency(self, kind: str, algorithm: str, protocol: str) -> float:
        """The model's latency in microseconds."""
        return self._entry(kind, algorithm, protocol)[1]

    def _entry(self, kind: str, algorithm: str, protocol: str) -> tuple[float, float]:
        key = (kind, algorithm, protocol)
        found = self._table.get(key)
        if found is None:
            usable = self.available(kind, algorithm, protocol, forced=False)
            found = (self._bandwidth(*key), self._latency(*key)) if usable else (0.0, 0.0)
            self._table[key] = found
        return found

    def _bandwidth(self, kind: str, algorithm: str, protocol: str) -> float:
        shape, graphs = self.shape, self.graphs
        r = shape.ranks
        if algorithm in ("nvls", "nvlstree"):
            return self._nvls_bandwidth(kind, algorithm)
        graph = graphs.ring if algorithm == "ring" else graphs.tree
        w = graph.channels * (graph.bw_intra if shape.nodes <= 2 else graph.bw_inter)
        if algorithm == "ring":
            if protocol == "ll":
                w = min(self._ll_cap, w / 2)
            elif protocol == "ll128":
                w = min(0.92 * w, graph.channels * self._per_channel("ring_ll128", k.RING_LL128_PER_CHANNEL))
            return w * r / self.steps(kind)
        if algorithm == "pat":
            return 0.75 * w
        w = min(0.92 * w, graph.channels * self._per_channel("tree", k.TREE_PER_CHANNEL))
        if protocol == "ll":
            w = min(w / 3.8, self._ll_cap)
        elif protocol == "ll128":
            factor = 7 / 9 if shape.nodes == 1 else 0.9375
            w = min(w * factor, graph.channels * self._per_channel("tree_ll128", k.TREE_LL128_PER_CHANNEL))
        if graphs.plain_tree:
            w *= 0.85
        return 0.5 * w

    def _nvls_bandwidth(self, kind: str, algorithm: str) -> float:
        graph, shape = self.graphs.nvls, self.shape
        assert graph is not None
        c, r = graph.channels, shape.ranks
        if self.version <= (2, 27):
            per = min(graph.bw_intra, graph.bw_inter)
            if algorithm == "nvlstree":
                per = min(graph.bw_intra, graph.bw_inter if shape.nodes <= 2 else graph.bw_inter / 2)
            return c * per * (5 / 6 if kind == "all_reduce" else 1.0)
        inside = graph.bw_intra * k.NVLS_EFFICIENCY[self._row] * (c - 1) / c
        inside *= 2 if kind == "all_reduce" else (shape.per_node - 1) / shape.per_node
        outside = graph.bw_inter * (2 if algorithm == "nvlstree" and shape.nodes <= 2 else 1)
        per = min(inside, outside)
        if algorithm == "nvlstree":
            per = min(per, self._per_channel("nvlstree", k.NVLSTREE_PER_CHANNEL))
        return c * per * (r / self.steps(kind) if kind == "all_reduce" else 1.0)

    def _latency(self, kind: str, algorithm: str, protocol: str) -> float:
        shape, n = self.shape, self.shape.nodes
        intra = k.hop_latency_us(
            "nvlink" if self.graphs.nvlink else "pcie", algorithm, protocol, self.version
        )
        net = k.hop_latency_us("net", algorithm, protocol, self.version)
        if shape.per_node == 1:
            net = k.hop_latency_us("net", "tree", protocol, self.version)
        net += self.cluster.nccl.net_latency_us * (2 if protocol == "simple" else 1)
        base = k.base_latency_us(algorithm, protocol, self.version)
        if algorithm == "ring":
            if COLLECTIVES[kind].rooted:
                return base + (net if n > 1 else intra)
            steps = self.steps(kind)
            crossing = COLLECTIVES[kind].ring_rounds * (n - 1)
            if self.version <= (2, 21) and n > 1 and kind == "all_reduce":
                crossing = 2 * n
            overhead = 0.0 if n == 1 else self._overhead * (3 if protocol == "simple" else 1)
            return base + (steps - crossing) * max(intra, overhead) + crossing * net
        if algorithm == "tree":
            return base + 2 * ((shape.ranks // n - 1) * intra + math.floor(math.log2(n)) * net)
        if algorithm == "nvls":
            return intra + (net if n > 1 else 0.0)
        if algorithm == "nvlstree":
            return intra + 2 * math.floor(math.log2(n)) * net
        return 8.0 + math.floor(math.log2(max(2, n))) * net / 3.5 + 2.8 * shape.ranks

    def time_us(self, kind: str, algorithm: str, protocol: str, size_bytes: int) -> float:
        """The model's time of one operation, infinity where the pair is not available."""
        bandwidth, latency = self._entry(kind, algorithm, protocol)
        if bandwidth <= 0:
            return math.inf
        if algorithm == "tree" and kind == "all_reduce":
            index = int(math.log2(size_bytes / 64)) if size_bytes >= 64 else -1
            if 0 <= index < 23:
                bandwidth *= k.TREE_CORRECTION[k.PROTOCOLS.index(protocol)][index]
        plateau = (
            algorithm == "ring" and protocol == "simple" and kind == "all_reduce" and self.shape.nodes > 1
        )
        if plateau and size_bytes // (self.channels * self.shape.ranks) >= 64:
            latency *= 1.4 if self._row else 1.9
        return latency + size_bytes / (1000.0 * bandwidth)

    def choose(
        self, kind: str, size_bytes: int, *, narrow_reduction: bool = False, switch_reduces: bool = True
    ) -> Pick:
        """Return NCCL's choice for a collective of `size_bytes`.

        `narrow_reduction`: an FP8 reduction, for which Ring is avoided on more than 8 ranks.
        `switch_reduces`: whether NVSwitch adds up this type; without it NVLS carries no reduction.
        Raises `ClusterError` where NCCL_ALGO and NCCL_PROTO leave nothing, as NCCL does.
        """
        best: tuple[float, str, str] | None = None
        for algorithm, protocol in ORDER:
            if not self.available(kind, algorithm, protocol):
                continue
            if algorithm in ("nvls", "nvlstree") and not switch_reduces and COLLECTIVES[kind].reduces:
                continue
            time = self.time_us(kind, algorithm, protocol, size_bytes)
            if narrow_reduction and algorithm == "ring" and self.shape.ranks > 8:
                time *= 1024
            if time < math.inf and (best is None or time < best[0]):
                best = (time, algorithm, protocol)
        if best is None and self.environment != Environment():
            # NCCL keeps what the variables exclude where nothing else implements the operation (broadcast
            # is ring only).
            for algorithm, protocol in ORDER:
                protocols = self.environment.protocols
                if self.available(kind, algorithm, protocol, forced=False) and (
                    not protocols or protocol in protocols
                ):
                    time = self.time_us(kind, algorithm, protocol, size_bytes)
                    if time < math.inf and (best is None or time < best[0]):
                        best = (time, algorithm, protocol)
        if best is None:
            raise ClusterError(
                f"environment: NCCL_ALGO/NCCL_PROTO leave no algorithm for {kind} on {self.shape.ranks} ranks"
            )
        time, algorithm, protocol = best
        channels, threads = self._width(algorithm, protocol, size_bytes)
        return Pick(algorithm, protocol, channels, threads, time)

    def _width(self, algorithm: str, protocol: str, size_bytes: int) -> tuple[int, int]:
        if algorithm in ("nvls", "nvlstree"):
            return min(self.graphs.nvls_channels, self.environment.max_channels), 640
        channels = self.channels
        graph = self.graphs.ring if algorithm == "ring" else self.graphs.tree
        threads = 640 if protocol == "ll128" else 512
        if protocol == "simple" and algorithm == "ring" and graph.channels * graph.bw_intra <= 12:
            threads = 256
        threshold = k.THREAD_THRESHOLD[protocol]
        if algorithm == "ring" and protocol == "ll":
            threshold *= self.shape.ranks
        while size_bytes < channels * threads * threshold and channels > max(
            1, self.environment.min_channels
        ):
            channels -= 1
        while size_bytes < channels * threads * threshold and threads % 128 == 0:
            threads //= 2
        if algorithm in ("tree", "pat"):
            threads = 640
        elif protocol == "simple":
            threads += 32
        return channels, threads
