"""Curves over virtual time: memory and network load."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from phantom.timeline.collectives import Collective
from phantom.timeline.links import LinkCurve, LinkRecord
from phantom.timeline.spool import RankSpool


def memory_curve(spool: RankSpool, device: int) -> NDArray[Any]:
    """Memory events of one device in order of time, as MEMORY_ROW."""
    rows = spool.memory[spool.memory["device"] == device]
    return rows[np.argsort(rows["time_ps"], kind="stable")]


def devices(spool: RankSpool) -> list[int]:
    """Devices on which the rank allocated."""
    return [int(device) for device in np.unique(spool.memory["device"])]


def thin(values: NDArray[np.int64], limit: int) -> NDArray[np.int64]:
    """Indices of at most `limit` points of a curve that keep its ends and its local highest points."""
    if len(values) <= limit:
        return np.arange(len(values))
    edges = np.linspace(0, len(values), max(limit, 2) - 1, dtype=np.int64)
    inner = [int(a + np.argmax(values[a:b])) for a, b in pairwise(edges.tolist()) if b > a]
    return np.unique(np.array([0, *inner, len(values) - 1], dtype=np.int64))


def bandwidth_curve(collectives: Iterable[Collective]) -> list[tuple[int, float]]:
    """(time in ps, bytes/s): sum of the bus bandwidths of the operations of one rank."""
    changes: dict[int, float] = {}
    for c in collectives:
        if c.end_ps > c.start_ps:
            changes[c.start_ps] = changes.get(c.start_ps, 0.0) + c.bus_bandwidth_bytes_per_s
            changes[c.end_ps] = changes.get(c.end_ps, 0.0) - c.bus_bandwidth_bytes_per_s
    curve = []
    total = 0.0
    for time_ps in sorted(changes):
        total += changes[time_ps]
        curve.append((time_ps, max(total, 0.0) if total > 1.0 else 0.0))
    return curve


def link_curve(record: LinkRecord, link: LinkCurve) -> list[tuple[int, float]]:
    """(time in ps, bytes/s): the mean over each bin, a point only where it changes, 0 after the last bin."""
    rates = np.append(link.bytes / (record.bin_ps * 1e-12), 0.0)
    changed = np.flatnonzero(np.diff(rates, prepend=0.0))
    return [(record.begin_ps + int(i) * record.bin_ps, float(rates[i])) for i in changed.tolist()]
