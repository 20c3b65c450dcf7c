"""Values that describe a cluster: GPU, node, fabric, NCCL, host and what-if degradations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class GpuSpec:
    """One GPU as PyTorch would see it, with its peak rates.

    `memory_bytes` is the total that CUDA reports; `reserved_bytes` is taken by the CUDA context.
    `peak_flops` maps "float64", "float64_tensor", "float32", "tf32", "float16", "bfloat16", "float8",
    "float4", "int8" to dense peaks in FLOP/s; a type that the GPU does not have is absent.
    """

    name: str
    preset: str
    memory_bytes: int
    capability: tuple[int, int]
    multi_processor_count: int
    clock_hz: float
    memory_clock_hz: float
    memory_bus_bits: int
    memory_bandwidth_bytes_per_s: float
    l2_cache_bytes: int
    shared_memory_per_block_bytes: int
    shared_memory_per_block_optin_bytes: int
    shared_memory_per_multiprocessor_bytes: int
    max_threads_per_multi_processor: int
    reserved_bytes: int
    power_w: float
    peak_flops: Mapping[str, float]

    @property
    def is_cpu(self) -> bool:
        """Whether the CPU itself is the device: ranks talk by Gloo, host copies are none."""
        return self.preset == "cpu"

    @property
    def compute_capability(self) -> int:
        """Compute capability as NCCL writes it: 80, 90, 100."""
        return 10 * self.capability[0] + self.capability[1]


@dataclass(frozen=True, kw_only=True)
class NvlinkSpec:
    """NVLink of one GPU. `kind`: "switch", "mesh" (all pairs wired), "pairs" (GPUs 2i and 2i + 1 joined
    by a bridge, the others over PCIe) or "none".

    `domain_nodes` nodes share one NVSwitch domain (multi-node NVLink). `efficiency` is the share of the
    line rate that a copy reaches. `ring_channels` gives, for "mesh", how many disjoint rings of one link
    NCCL finds for a group size.
    """

    kind: str
    links: int
    link_bandwidth_bytes_per_s: float
    latency_s: float
    efficiency: float
    multicast: bool
    domain_nodes: int
    ring_channels: Mapping[int, int] = field(default_factory=dict)

    @property
    def wired(self) -> bool:
        """Whether GPUs are joined by wires of their own: bridged pairs, and a mesh of all pairs.

        A mesh with `ring_channels` (DGX-1) joins only some pairs and is one bundle of links per GPU.
        """
        return self.kind == "pairs" or (self.kind == "mesh" and not self.ring_channels)

    def links_per_pair(self, gpus: int) -> float:
        """Links between two GPUs that a wire joins, in a node of `gpus`."""
        return float(self.links) if self.kind == "pairs" else self.links / max(1, gpus - 1)

    @property
    def bandwidth_bytes_per_s(self) -> float:
        """Achievable bandwidth of one GPU in one direction over all its links."""
        return self.links * self.link_bandwidth_bytes_per_s * self.efficiency


@dataclass(frozen=True, kw_only=True)
class PcieSpec:
    """PCIe of a node. Bandwidths are achievable bytes per second in one direction.

    `p2p_bandwidth_bytes_per_s` is what a GPU reaches to another GPU through host memory or a PCIe switch.
    `peer_bandwidth_bytes_per_s` is what all GPUs of a switch together reach to those of other switches; 0
    where the host's links are the only bound.
    """

    generation: int
    lanes: int
    bandwidth_bytes_per_s: float
    host_bandwidth_bytes_per_s: float
    p2p_bandwidth_bytes_per_s: float
    peer_bandwidth_bytes_per_s: float
    pageable_bandwidth_bytes_per_s: float
    latency_s: float
    gpus_per_switch: int


@dataclass(frozen=True, kw_only=True)
class NodeSpec:
    """One server."""

    gpus: int
    cpu_vendor: str
    sockets: int
    socket_bandwidth_bytes_per_s: float
    nics: int
    nic_bandwidth_bytes_per_s: float
    nic_efficiency: float
    nic_latency_s: float
    nvlink: NvlinkSpec
    pcie: PcieSpec


@dataclass(frozen=True, kw_only=True)
class FabricLink:
    """One undirected edge of a custom fabric, between names of NICs ("node0/nic0") and switches (any other
    name).
    """

    ends: tuple[str, str]
    bandwidth_bytes_per_s: float
    latency_s: float


@dataclass(frozen=True, kw_only=True)
class FabricSpec:
    """The network between nodes.

    `kind`: "rail-fat-tree", "fat-tree", "single-switch", "torus", "direct-connect", "graph" or "none".
    `oversubscription` is leaf down-bandwidth over leaf up-bandwidth. `dimensions` belongs to "torus".
    """

    kind: str
    routing: str
    nodes_per_leaf: int
    spines: int
    oversubscription: float
    link_bandwidth_bytes_per_s: float
    hop_latency_s: float
    dimensions: tuple[int, ...]
    links: tuple[FabricLink, ...]


@dataclass(frozen=True, kw_only=True)
class ProtocolTiming:
    """Calibrated times of one (algorithm, protocol); docs/network.md has the formula and the fits.

    `base_us` per operation, `intra_us` and `inter_us` per sequential hop inside and between nodes,
    `efficiency` the share reached of the bandwidth that NCCL's tuning model gives.
    """

    base_us: float
    intra_us: float
    inter_us: float
    efficiency: float


@dataclass(frozen=True, kw_only=True)
class WithinNodeTiming:
    """Calibrated time of one (algorithm, protocol), or of grouped send/recv, inside one domain or server.

    S bytes take (L^p + X^p)^(1/p) + `fill_us` * S / (S + `fill_bytes`) with p = `sharpness`: how far the
    latencies of the steps (L) hide behind the transfer (X); 1 adds them up.
    L = `base_us` + hops * `hop_us` + (sqrt(channels) - 1) * `channel_us`. X is the longest of S / (bandwidth
    of NCCL's tuning model * `efficiency`), for send/recv of the line rate, where a loop of n steps moves
    n + `tail` pieces (the own piece is copied too); of the bus bytes over channels *
    `channel_bytes_per_s`; and of what the links allow. `fill_us` is what filling the pipeline
    takes; for send/recv, where S is one peer's piece, what the change from LL to Simple adds.
    """

    base_us: float
    hop_us: float
    channel_us: float
    efficiency: float
    channel_bytes_per_s: float
    sharpness: float
    fill_us: float
    fill_bytes: float
    tail: float


@dataclass(frozen=True, kw_only=True)
class NcclSpec:
    """NCCL's version and the calibrated times by "algorithm_protocol" ("ring_ll128").

    `channel_us` and `channel_inter_us` (per hop between nodes) are what waiting for the slowest of n
    channels adds, times sqrt(n) - 1. `ring_tail` is the share of one step that a ring's last primitive
    adds. `net_latency_us` is what a network plug-in tells NCCL's tuning model (0 for InfiniBand and
    sockets). `p2p_base_us` and `p2p_inter_us` start a message inside and between servers, `p2p_peer_us` is
    added for each further peer of a grouped send/recv; one message between servers reaches
    `p2p_inter_efficiency` of its NICs' achievable rate. `pxn`: messages change to the destination's rail
    over NVLink. `within_node`: times inside one NVLink domain or server, by the same names and
    "send_recv" and "all_to_all"; `timing` holds between servers, and for what is absent here.
    """

    version: str
    timing: Mapping[str, ProtocolTiming]
    within_node: Mapping[str, WithinNodeTiming]
    channel_us: float
    channel_inter_us: float
    ring_tail: float
    net_latency_us: float
    p2p_base_us: float
    p2p_inter_us: float
    p2p_peer_us: float
    p2p_inter_efficiency: float
    pxn: bool


@dataclass(frozen=True, kw_only=True)
class HostSpec:
    """Modelled CPU times in seconds: what the thread that issues device work spends.

    `op_s` per dispatched operator that launches a kernel, `view_s` per view or metadata operator,
    `backward_node_s` per operator that an autograd node issues, `launch_latency_s` from launch to start of
    the kernel on an idle GPU, `collective_s` per collective call, `query_s` per event query, `store_s` per
    store request.
    `optimizer_bytes_per_s`: rate at which all cores of a server together run an optimizer over host memory.
    """

    op_s: float
    view_s: float
    backward_node_s: float
    launch_latency_s: float
    collective_s: float
    query_s: float
    store_s: float
    optimizer_bytes_per_s: float


@dataclass(frozen=True, kw_only=True)
class BackgroundFlow:
    """Traffic of others between two global ranks, always present at up to `bandwidth_bytes_per_s`."""

    source: int
    destination: int
    bandwidth_bytes_per_s: float


@dataclass(frozen=True, kw_only=True)
class DegradeSpec:
    """What-if: factors on the speed of GPUs and hosts (by rank or node number) and links (by name); 0 is a
    failed link.
    """

    gpus: Mapping[int, float]
    hosts: Mapping[int, float]
    links: Mapping[str, float]
    background: tuple[BackgroundFlow, ...]


@dataclass(frozen=True, kw_only=True)
class ClusterSpec:
    """A whole cluster description; `source` is the file or preset it came from."""

    name: str
    description: str
    source: str
    gpu: GpuSpec
    node: NodeSpec
    fabric: FabricSpec
    nccl: NcclSpec
    host: HostSpec
    degrade: DegradeSpec
