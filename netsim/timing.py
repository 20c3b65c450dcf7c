"""Calibrated start-up time and bandwidth of NCCL's algorithms."""

from __future__ import annotations

import math

from netsim.nccl_model import Pick, TuningModel
from netsim.topology import Topology


def startup_us(
    model: TuningModel,
    topology: Topology,
    members: tuple[tuple[int, ...], ...],
    kind: str,
    pick: Pick,
    size_bytes: int,
) -> float:
    """Time before and besides the transfer: base, hops inside and between nodes, and filling the pipeline."""
    t = topology.cluster.nccl.timing[f"{pick.algorithm}_{pick.protocol}"]
    intra, inter = hops(model, kind, pick.algorithm)
    fill = t.fill_us * math.sqrt(size_bytes / 2**20)
    return t.base_us + intra * t.intra_us + inter * t.inter_us + fill


def hops(model: TuningModel, kind: str, algorithm: str) -> tuple[float, float]:
    """Sequential hops inside and between nodes of one operation."""
    shape = model.shape
    n = shape.nodes
    if algorithm == "ring":
        if kind in ("broadcast", "reduce"):
            return float(shape.ranks - n), float(n - 1)
        steps = model.steps(kind)
        crossing = 0 if n == 1 else 2 * (n - 1) if kind == "all_reduce" else n - 1
        return float(steps - crossing), float(crossing)
    depth = math.floor(math.log2(n)) if n > 1 else 0
    if algorithm == "tree":
        return 2.0 * (shape.ranks // n - 1), 2.0 * depth
    if algorithm == "nvls":
        return 0.0, 1.0 if n > 1 else 0.0
    if algorithm == "nvlstree":
        return 0.0, 2.0 * depth
    return 0.0, float(depth)


def transfer_cap(model: TuningModel, kind: str, pick: Pick) -> float:
    """Upper bound of the algorithm bandwidth in bytes/s."""
    t = model.cluster.nccl.timing[f"{pick.algorithm}_{pick.protocol}"]
    return model.bandwidth(kind, pick.algorithm, pick.protocol) * 1e9 * t.efficiency
