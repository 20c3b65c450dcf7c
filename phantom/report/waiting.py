"""Splits exposed communication into waiting for other ranks and transfer, and tells the pipeline's bubble."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from phantom.report.intervals import Intervals, length_ps, union
from phantom.results.run_summary import Detail
from phantom.timeline.recording import Recording

MESSAGES = "send_recv"


@dataclass(frozen=True)
class Waiting:
    """A stretch of one rank's time in ps; compute + transfer + waiting + idle add up to it exactly.

    `transfer_ps`: communication under way, no kernel. `waiting_ps`: launched and ready, but another rank is
    not, no kernel. `message_waiting_ps`: the part of it in point-to-point messages.
    """

    compute_ps: int
    transfer_ps: int
    waiting_ps: int
    message_waiting_ps: int
    idle_ps: int

    @property
    def total_ps(self) -> int:
        """Length of the stretch."""
        return self.compute_ps + self.transfer_ps + self.waiting_ps + self.idle_ps


Rows = tuple[NDArray[Any], NDArray[Any]]
"""Starts and ends in ps."""


def parts(recording: Recording, rank: int, begin_ps: int, end_ps: int) -> tuple[Rows, Rows, Rows, Rows]:
    """Kernels, transfers, waits in messages, other waits for ranks, as far as they touch the stretch."""
    spool = recording.ranks[rank]
    rows: list[tuple[int, int]] = []
    waits: list[tuple[int, int]] = []
    message_waits: list[tuple[int, int]] = []
    near = (spool.spans["end_ps"] > begin_ps) & (spool.spans["start_ps"] < end_ps)
    for start_ps, stop_ps, node, *_ in spool.spans[near & spool.communication].tolist():
        operations = recording.collectives_of.get((rank, node), ())
        started_ps = min((c.start_ps for c in operations), default=start_ps)
        started_ps = min(max(started_ps, start_ps), stop_ps)
        rows.append((started_ps, stop_ps))
        if started_ps > start_ps:
            messages = all(c.kind == MESSAGES for c in operations)
            (message_waits if messages else waits).append((start_ps, started_ps))
    kernels = spool.spans[near & ~spool.communication]
    return (kernels["start_ps"], kernels["end_ps"]), _rows(rows), _rows(message_waits), _rows(waits)


def _rows(pairs: list[tuple[int, int]]) -> Rows:
    rows = np.array(pairs, dtype=np.int64).reshape(-1, 2)
    return rows[:, 0], rows[:, 1]


def layers(recording: Recording, rank: int, begin_ps: int, end_ps: int) -> list[Intervals]:
    """Unions that each contain the one before: kernels, and transfers, and message waits, and other waits."""
    found = parts(recording, rank, begin_ps, end_ps)
    return [
        union(
            np.concatenate([starts for starts, _ in found[:count]]),
            np.concatenate([ends for _, ends in found[:count]]),
            begin_ps,
            end_ps,
        )
        for count in range(1, len(found) + 1)
    ]


def waiting(recording: Recording, rank: int, begin_ps: int, end_ps: int) -> Waiting:
    """The stretch [begin_ps, end_ps) of a recorded rank."""
    lengths = [length_ps(layer) for layer in layers(recording, rank, begin_ps, end_ps)]
    compute_ps, transferred_ps, messages_ps, busy_ps = lengths
    return Waiting(
        compute_ps,
        transferred_ps - compute_ps,
        busy_ps - transferred_ps,
        messages_ps - transferred_ps,
        max(end_ps - begin_ps, 0) - busy_ps,
    )


def by_rank(recording: Recording) -> dict[int, Waiting]:
    """Sums over the counted recorded steps of each rank: all but step 0 where there are more."""
    indices = recording.step_indices
    counted = [index for index in indices if index > 0] or indices
    found: dict[int, Waiting] = {}
    for rank, spool in recording.ranks.items():
        steps = [step for step in spool.steps if step.index in counted]
        if steps:
            found[rank] = waiting(recording, rank, steps[0].begin_ps, steps[-1].end_ps)
    return found


def detail(recording: Recording) -> Detail | None:
    """What summary.json says of the recorded steps, None where nothing was recorded.

    `bubble` is the share of device time that a pipeline leaves empty: waiting in messages, or idle; only for
    jobs that send messages.
    """
    rows = by_rank(recording)
    total_ps = sum(row.total_ps for row in rows.values())
    if not total_ps:
        return None
    empty_ps = sum(row.message_waiting_ps + row.idle_ps for row in rows.values())
    messages = any(collective.kind == MESSAGES for collective in recording.collectives)
    return Detail(
        steps=tuple(recording.step_indices),
        ranks=len(rows),
        compute=sum(row.compute_ps for row in rows.values()) / total_ps,
        transfer=sum(row.transfer_ps for row in rows.values()) / total_ps,
        waiting_for_ranks=sum(row.waiting_ps for row in rows.values()) / total_ps,
        idle=sum(row.idle_ps for row in rows.values()) / total_ps,
        bubble=empty_ps / total_ps if messages else None,
    )
