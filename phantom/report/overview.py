"""What each rank does over the time of a step: compute, transfer, wait for other ranks, or nothing."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from phantom.report.intervals import Intervals, covered_ps, length_ps, union
from phantom.report.waiting import layers
from phantom.timeline.recording import Recording
from phantom.timeline.spool import RankSpool

COLUMNS = 480
IDLE, COMPUTE, TRANSFER, WAITING = "0", "1", "2", "3"


@dataclass(frozen=True)
class Breakdown:
    """A stretch of one rank's time in ps; the three add up to it exactly."""

    compute_ps: int
    exposed_ps: int
    idle_ps: int


def _busy(spool: RankSpool, begin_ps: int, end_ps: int) -> tuple[Intervals, Intervals]:
    """Union of kernels, and union of kernels and communication."""
    spans = spool.spans
    kernels = spans[~spool.communication]
    return (
        union(kernels["start_ps"], kernels["end_ps"], begin_ps, end_ps),
        union(spans["start_ps"], spans["end_ps"], begin_ps, end_ps),
    )


def breakdown(spool: RankSpool, begin_ps: int, end_ps: int) -> Breakdown:
    """Compute is covered by some kernel, exposed communication by communication only, idle by nothing."""
    compute, busy = _busy(spool, begin_ps, end_ps)
    compute_ps, busy_ps = length_ps(compute), length_ps(busy)
    return Breakdown(compute_ps, busy_ps - compute_ps, max(end_ps - begin_ps, 0) - busy_ps)


def strip(recording: Recording, rank: int, begin_ps: int, end_ps: int, *, columns: int = COLUMNS) -> str:
    """One character per slice of the time: what fills most of it."""
    edges = np.linspace(begin_ps, end_ps, columns + 1)
    slice_ps = (end_ps - begin_ps) / columns
    compute_ps, transferred_ps, _, busy_ps = (
        covered_ps(layer, edges) for layer in layers(recording, rank, begin_ps, end_ps)
    )
    shares = [slice_ps - busy_ps, compute_ps, transferred_ps - compute_ps, busy_ps - transferred_ps]
    return "".join((IDLE, COMPUTE, TRANSFER, WAITING)[index] for index in np.stack(shares).argmax(axis=0))


def strips(recording: Recording, step: int, *, columns: int = COLUMNS) -> dict[int, str]:
    """A strip for every recorded rank, over the time of the step on all ranks."""
    begin_ps, end_ps = recording.step_bounds_ps(step)
    return {rank: strip(recording, rank, begin_ps, end_ps, columns=columns) for rank in recording.ranks}
