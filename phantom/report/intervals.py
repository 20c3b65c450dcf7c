"""Unions of time intervals and how much of each slice of time they cover. Times in ps, exact integers."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Intervals = tuple[NDArray[np.int64], NDArray[np.int64]]
"""Starts and ends, sorted, disjoint."""


def union(starts: NDArray[Any], ends: NDArray[Any], begin_ps: int, end_ps: int) -> Intervals:
    """The union of intervals, clipped to [begin_ps, end_ps)."""
    starts = np.maximum(starts.astype(np.int64), begin_ps)
    ends = np.minimum(ends.astype(np.int64), end_ps)
    keep = ends > starts
    starts, ends = starts[keep], ends[keep]
    if len(starts) == 0:
        return starts, ends
    order = np.argsort(starts, kind="stable")
    starts, reach = starts[order], np.maximum.accumulate(ends[order])
    first = np.concatenate([[True], starts[1:] > reach[:-1]])
    last = np.concatenate([first[1:], [True]])
    return starts[first], reach[last]


def length_ps(intervals: Intervals) -> int:
    """Total length."""
    return int((intervals[1] - intervals[0]).sum())


def covered_ps(intervals: Intervals, edges: NDArray[Any]) -> NDArray[np.float64]:
    """How much of each slice between neighbouring `edges` is covered, in ps."""
    starts, ends = intervals
    if len(starts) == 0:
        return np.zeros(len(edges) - 1)
    total = np.concatenate([[0], np.cumsum(ends - starts)])
    points = np.stack([starts, ends], axis=1).ravel()
    values = np.stack([total[:-1], total[1:]], axis=1).ravel()
    # Two intervals that touch give one point twice, with the same value: np.interp accepts that.
    return np.diff(np.interp(edges.astype(np.float64), points.astype(np.float64), values.astype(np.float64)))
