"""Calibrated start-up time and bandwidth of NCCL's algorithms.

time = base + hops_intra * intra + hops_inter * inter + (sqrt(channels) - 1) * (channel + hops_inter *
channel_inter) + size / min(tuning-model bandwidth * efficiency, what the links allow)

The hops are NCCL's (`nccl_constants`); the microseconds and the efficiencies are fitted (`calibrate`). The
last term is the transfer, which shares links with others.
"""

from __future__ import annotations

import math

from netsim.nccl import constants as k
from netsim.nccl.tuning import Pick, TuningModel
from netsim.operation import COLLECTIVES


def startup_us(model: TuningModel, kind: str, pick: Pick) -> float:
    """Time before the transfer."""
    nccl = model.cluster.nccl
    t = nccl.timing[f"{pick.algorithm}_{pick.protocol}"]
    intra, inter = hops(model, kind, pick.algorithm)
    waiting = channel_spread(pick.algorithm, pick.channels) * (
        nccl.channel_us + inter * nccl.channel_inter_us
    )
    return t.base_us + intra * t.intra_us + inter * t.inter_us + waiting


def channel_spread(algorithm: str, channels: int) -> float:
    """Factor on the wait for the slowest channel; NVLS and PAT have fixed channels, so that it is in their
    base.
    """
    return math.sqrt(channels) - 1.0 if algorithm in ("ring", "tree") else 0.0


def hops(model: TuningModel, kind: str, algorithm: str) -> tuple[float, float]:
    """Sequential hops inside and between nodes of one operation."""
    shape = model.shape
    n = shape.nodes
    if algorithm == "ring":
        if COLLECTIVES[kind].rooted:
            return float(shape.ranks - n), float(n - 1)
        steps = model.steps(kind)
        crossing = COLLECTIVES[kind].ring_rounds * (n - 1)
        return float(steps - crossing), float(crossing)
    depth = math.floor(math.log2(n)) if n > 1 else 0
    if algorithm == "tree":
        return 2.0 * (shape.ranks // n - 1), 2.0 * depth
    if algorithm == "nvls":
        return 0.0, 1.0 if n > 1 else 0.0
    if algorithm == "nvlstree":
        return 0.0, 2.0 * depth
    return 0.0, float(depth)


def model_bandwidth(model: TuningModel, kind: str, pick: Pick, size_bytes: int) -> float:
    """NCCL's bandwidth for this size in bytes/s: Tree's is lower for small and middle sizes
    (`TREE_CORRECTION`).
    """
    bandwidth = model.bandwidth(kind, pick.algorithm, pick.protocol) * 1e9
    if pick.algorithm == "ring" and model.shape.nodes == 1:
        # A ring's loop has one primitive more than it has steps; on GPUs whose channels are the limit that
        # one counts.
        bandwidth /= 1.0 + model.cluster.nccl.ring_tail / model.steps(kind)
    if pick.algorithm == "tree" and kind == "all_reduce" and size_bytes >= 64:
        row = k.TREE_CORRECTION[k.PROTOCOLS.index(pick.protocol)]
        # Between the table's powers of two the factor is interpolated, or a step would make larger messages
        # faster.
        position = min(len(row) - 1.0, math.log2(size_bytes / 64))
        low = int(position)
        high = min(low + 1, len(row) - 1)
        bandwidth *= row[low] + (position - low) * (row[high] - row[low])
    return bandwidth


def transfer_cap(model: TuningModel, kind: str, pick: Pick, size_bytes: int) -> float:
    """Upper bound of the algorithm bandwidth in bytes/s."""
    t = model.cluster.nccl.timing[f"{pick.algorithm}_{pick.protocol}"]
    return model_bandwidth(model, kind, pick, size_bytes) * t.efficiency
