"""Calibrated time of an operation inside one NVLink domain or server.

`WithinNodeTiming` has the formula. The flow-level network shares the transfer with others, so the time is
split into a latency and a rate: alone, an operation takes their sum, which is the calibrated time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from netsim.cluster.spec import WithinNodeTiming
from netsim.nccl.startup import channel_spread, hops
from netsim.nccl.tuning import Pick, TuningModel
from netsim.operation import COLLECTIVES, bus_factor


@dataclass(frozen=True)
class Start:
    """A latency in microseconds, then progress of at most `bytes_per_s`."""

    latency_us: float
    bytes_per_s: float


def within_node_of(model: TuningModel, pick: Pick) -> WithinNodeTiming | None:
    """Timing of a choice that stays inside a node; None between nodes and where nothing was measured."""
    if model.shape.nodes > 1:
        return None
    return model.cluster.nccl.within_node.get(f"{pick.algorithm}_{pick.protocol}")


def within_node_time(
    model: TuningModel, timing: WithinNodeTiming, kind: str, pick: Pick, size_bytes: int, link_s: float
) -> Start:
    """Start of a collective whose busiest link takes `link_s` alone."""
    ranks = model.shape.ranks
    channels = float(pick.channels)
    latency_us = timing.base_us + hops(model, kind, pick.algorithm)[0] * timing.hop_us
    if channel_spread(pick.algorithm, pick.channels):
        latency_us += channel_spread(pick.algorithm, pick.channels) * timing.channel_us
    pieces = 1.0
    if pick.algorithm == "ring":
        pieces += timing.tail / COLLECTIVES[kind].ring_steps(ranks)
    modelled = model.bandwidth(kind, pick.algorithm, pick.protocol) * 1e9 * timing.efficiency
    transfer_s = max(
        size_bytes * pieces / modelled,
        size_bytes * bus_factor(kind, ranks) / (channels * timing.channel_bytes_per_s),
    )
    return start_of(timing, latency_us, transfer_s, link_s, size_bytes)


def start_of(
    timing: WithinNodeTiming, latency_us: float, transfer_s: float, link_s: float, size_bytes: float
) -> Start:
    """Split the time of latencies and transfer into what comes before the transfer and its rate."""
    total_us = total_time_us(timing, latency_us, max(transfer_s, link_s) * 1e6, size_bytes)
    moving_us = max(total_us - latency_us, link_s * 1e6)
    if size_bytes <= 0 or moving_us <= 0:
        return Start(total_us, math.inf)
    return Start(max(0.0, total_us - moving_us), size_bytes / (moving_us * 1e-6))


def total_time_us(
    timing: WithinNodeTiming, latency_us: float, transfer_us: float, size_bytes: float
) -> float:
    """Time of an operation alone."""
    p = timing.sharpness
    return (latency_us**p + transfer_us**p) ** (1.0 / p) + timing.fill_us * size_bytes / (
        size_bytes + timing.fill_bytes
    )
