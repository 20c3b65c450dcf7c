"""The chain of work that a step's length consists of, followed backwards from its end across the ranks."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from phantom.timeline.recording import Recording
from phantom.timeline.spool import RankSpool

COMPUTE, COMMUNICATION, HOST = "compute", "communication", "host"


@dataclass(frozen=True)
class Segment:
    """A piece of the path on one rank: a kernel, a transfer, or the device waiting for its host."""

    rank: int
    start_ps: int
    end_ps: int
    kind: str
    name: str
    klass: str = ""

    @property
    def duration_ps(self) -> int:
        """Length in ps."""
        return self.end_ps - self.start_ps


class _Ends:
    """One rank's spans by end time."""

    def __init__(self, spool: RankSpool) -> None:
        keep = spool.spans["end_ps"] > spool.spans["start_ps"]
        spans, communication = spool.spans[keep], spool.communication[keep]
        order = np.lexsort((spans["start_ps"], spans["end_ps"]))
        self.spans, self.communication = spans[order], communication[order]
        self.ends = self.spans["end_ps"]
        self.start_of_node = {
            int(span["node"]): int(span["start_ps"]) for span in spool.spans[spool.communication]
        }

    def last_before(self, time_ps: int, stream: int | None) -> int | None:
        """Index of the last span to end by then; of equals `stream`'s, then a collective."""
        high = int(np.searchsorted(self.ends, time_ps, side="right"))
        if high == 0:
            return None
        low = int(np.searchsorted(self.ends, self.ends[high - 1], side="left"))
        return max(
            range(low, high),
            key=lambda i: (int(self.spans["stream"][i]) == stream, bool(self.communication[i]), i),
        )


def critical_path(recording: Recording, step: int) -> list[Segment]:
    """The path in order of time; its segments abut and add up to the step exactly.

    From the end of the last rank: a kernel leads to what ended when it started; a collective to the member
    that was ready last, on that member's rank; where nothing ended, the device waited for its host up to the
    end of the work before. Raises KeyError for a step that was not recorded.
    """
    begin_ps, end_ps = recording.step_bounds_ps(step)
    ends = {rank: _Ends(spool) for rank, spool in recording.ranks.items()}
    last = {rank: found.end_ps for rank, spool in recording.ranks.items() if (found := spool.step(step))}
    rank = min(last, key=lambda r: (-last[r], r))
    path: list[Segment] = []
    now_ps = end_ps
    stream: int | None = None
    while now_ps > begin_ps:
        at = ends[rank].last_before(now_ps, stream)
        reached_ps = begin_ps if at is None else max(int(ends[rank].ends[at]), begin_ps)
        if at is None or reached_ps < now_ps:
            path.append(Segment(rank, reached_ps, now_ps, HOST, "waiting for the host"))
            now_ps = reached_ps
            continue
        start_ps, _, node, stream, kernel = ends[rank].spans[at].tolist()
        what = recording.ranks[rank].kernels[kernel]
        if not ends[rank].communication[at]:
            started_ps = max(start_ps, begin_ps)
            path.append(Segment(rank, started_ps, now_ps, COMPUTE, what.name, what.klass))
            now_ps = started_ps
            continue
        came_from = rank
        operations = recording.collectives_of.get((rank, node), [])
        if operations:
            operation = max(operations, key=lambda c: (c.end_ps, -c.start_ps, c.comm, c.seq))
            if start_ps < operation.start_ps < now_ps:
                start_ps = operation.start_ps
                ready = {r: ends[r].start_of_node.get(n, -1) for r, n in operation.members if r in ends}
                came_from = min(ready, key=lambda r: (-ready[r], r))
        started_ps = max(start_ps, begin_ps)
        path.append(Segment(rank, started_ps, now_ps, COMMUNICATION, what.name, what.klass))
        now_ps = started_ps
        if came_from != rank:
            rank, stream = came_from, None
    path.reverse()
    return path


@dataclass(frozen=True)
class Share:
    """What one kind of work contributes to the path."""

    kind: str
    name: str
    count: int
    total_ps: int


def shares(path: list[Segment]) -> list[Share]:
    """The path by kind and name, longest first."""
    totals: dict[tuple[str, str], tuple[int, int]] = {}
    for segment in path:
        count, total_ps = totals.get((segment.kind, segment.name), (0, 0))
        totals[segment.kind, segment.name] = (count + 1, total_ps + segment.duration_ps)
    found = [Share(kind, name, count, total_ps) for (kind, name), (count, total_ps) in totals.items()]
    return sorted(found, key=lambda share: (-share.total_ps, share.kind, share.name))
