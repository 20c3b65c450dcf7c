"""Constants of NCCL's tuning model, by version.

Facts from NVIDIA/nccl `src/graph/tuning.cc`, `src/graph/search.cc`, `src/graph/topo.h` at 2.30.7 (commit
5067397c26) and the older tags named below. Times in microseconds, bandwidths in GB/s (decimal).
"""

from __future__ import annotations

ALGORITHMS = ("tree", "ring", "collnet_direct", "collnet_chain", "nvls", "nvlstree", "pat")
PROTOCOLS = ("ll", "ll128", "simple")

BASE_LATENCY_US = {
    "tree": (6.8, 14.0, 8.4),
    "ring": (6.6, 14.0, 8.4),
    "nvls": (0.0, 0.0, 0.0),
    "nvlstree": (0.0, 0.0, 0.0),
    "pat": (8.0, 8.0, 8.0),
}
HOP_LATENCY_US = {
    "nvlink": {
        "tree": (0.6, 1.25, 4.0),
        "ring": (0.6, 1.9, 3.4),
        "nvls": (25.0,) * 3,
        "nvlstree": (25.0,) * 3,
        "pat": (4.0,) * 3,
    },
    "pcie": {
        "tree": (1.0, 1.9, 4.0),
        "ring": (1.0, 2.5, 5.7),
        "nvls": (0.0,) * 3,
        "nvlstree": (0.0,) * 3,
        "pat": (4.0,) * 3,
    },
    "net": {
        "tree": (5.0, 8.5, 14.0),
        "ring": (2.7, 4.0, 14.0),
        "nvls": (18.0,) * 3,
        "nvlstree": (20.9,) * 3,
        "pat": (14.0,) * 3,
    },
}

# Rows by GPU class: 0 Volta, 1 Ampere, 2 Hopper, 3 Blackwell; columns 1, 2, 3 or more nodes.
LL_CAP_ONE_NODE = (39.0, 87.7, 141.0, 282.0)
LL_CAP_AMD = (22.5, 19.0)
LL_CAP_OTHER = (39.0, 20.4)
RING_LL128_PER_CHANNEL = ((20.0,) * 3, (20.0,) * 3, (36.7,) * 3, (40.0,) * 3)
TREE_LL128_PER_CHANNEL = ((20.0,) * 3, (20.0,) * 3, (36.7, 36.7, 29.0), (55.6, 31.67, 20.0))
TREE_PER_CHANNEL = ((26.5, 18.5, 10.0), (24.0, 23.6, 17.8), (38.7, 41.4, 36.0), (70.0, 42.8, 24.0))
NVLSTREE_PER_CHANNEL = ((26.5, 18.5, 10.0), (24.0, 23.6, 17.8), (0.0, 57.7, 45.5), (0.0, 96.0, 80.0))
NVLS_EFFICIENCY = (0.0, 0.0, 0.85, 0.74)

# Corrections to Tree's bandwidth for sizes 64 B, 128 B, ... 512 MiB.
TREE_CORRECTION = (
    (1.0,) * 4 + (0.9, 0.8, 0.7, 0.7, 0.7, 0.7, 0.6, 0.5, 0.4, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9) + (1.0,) * 5,
    (1.0,) * 5
    + (0.9, 0.8, 0.8, 0.8, 0.7, 0.6, 0.6, 0.6, 0.6, 0.6, 0.6, 0.8, 0.9, 0.9, 0.9, 0.9)
    + (1.0,) * 3,
    (0.9,) * 7 + (0.8, 0.7, 0.6, 0.6, 0.5, 0.5, 0.5, 0.5, 0.6, 0.7, 0.8, 0.7, 0.7, 0.8, 0.9, 0.9, 0.9),
)

SPEEDS_INTRA: dict[int, tuple[float, ...]] = {
    7: (40, 30, 20, 18, 15, 12, 10, 9, 7, 6, 5, 4, 3),
    9: (60, 50, 40, 30, 24, 20, 15, 12, 11, 6, 3),
    10: (90, 80, 70, 60, 50, 45, 40, 30, 24, 20, 19, 18),
}
SPEEDS_INTER: dict[int, tuple[float, ...]] = {
    7: (48, 30, 28, 24, 20, 18, 15, 12, 10, 9, 7, 6, 5, 4, 3, 2.4, 1.2, 0.24, 0.12),
    9: (48, 45, 42, 40, 30, 24, 22, 20, 17.5, 15, 12, 6, 3, 2.4, 1.2, 0.24, 0.12),
    10: (96, 86, 80, 48, 45.1, 42, 40, 30, 24, 22, 20, 17.5, 15, 12, 6, 3, 2.4, 1.2, 0.24, 0.12),
}
NVLINK_PER_LINK = {70: 20.0, 80: 20.0, 86: 12.0, 90: 20.6, 100: 40.1}
PCIE_X16 = {3: 12.0, 4: 24.0, 5: 48.0, 6: 96.0}

NET_OVERHEAD_US = {"intel": 1.0, "amd": 2.0, "arm": 1.0}
THREAD_THRESHOLD = {"ll": 8, "ll128": 8, "simple": 64}
MAX_CHANNELS = 64


def parse_version(text: str) -> tuple[int, int]:
    """ "2.21.5" as (2, 21)."""
    major, minor = text.split(".")[:2]
    return int(major), int(minor)


def hop_latency_us(where: str, algorithm: str, protocol: str, version: tuple[int, int]) -> float:
    """Per-hop hardware latency; up to 2.21 Tree Simple was 28 us everywhere, up to 2.27 NVLSTree 14 us on
    the network.
    """
    if version <= (2, 21) and algorithm == "tree" and protocol == "simple":
        return 28.0
    if version <= (2, 27) and algorithm == "nvlstree" and where == "net":
        return 14.0
    return HOP_LATENCY_US[where][algorithm][PROTOCOLS.index(protocol)]


def base_latency_us(algorithm: str, protocol: str, version: tuple[int, int]) -> float:
    """Base latency; up to 2.21 Tree Simple had none."""
    if version <= (2, 21) and algorithm == "tree" and protocol == "simple":
        return 0.0
    return BASE_LATENCY_US[algorithm][PROTOCOLS.index(protocol)]


def speeds(table: dict[int, tuple[float, ...]], major: int, version: tuple[int, int]) -> tuple[float, ...]:
    """Search list for a compute capability; 86 GB/s came with 2.30."""
    row = table[10 if major >= 10 else 9 if major == 9 else 7]
    return tuple(s for s in row if s != 86 or version >= (2, 30))


def blackwell_row(
    table: tuple[tuple[float, ...], ...], name: str, version: tuple[int, int]
) -> tuple[float, ...]:
    """Blackwell's row: twice Hopper's up to 2.27, and what changed in 2.28 to 2.30."""
    if version <= (2, 27):
        return tuple(2 * v for v in table[2])
    if name == "ring_ll128" and version == (2, 28):
        return (73.4, 34.6, 73.4)
    if name == "nvlstree" and version <= (2, 29):
        return (0.0, 96.0, 43.8)
    return table[3]
