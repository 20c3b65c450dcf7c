"""Thread clocks of the ranks and the commit horizon they define."""

from __future__ import annotations

import heapq
from enum import IntEnum
from typing import Any

INFINITY_PS = 1 << 62


class ClockState(IntEnum):
    """What a clock is doing. Only RUNNING clocks hold the horizon."""

    RUNNING = 0
    BLOCKED = 1
    ENDED = 2
    SILENT = 3  # still running for all we know, but taken out of the horizon


class Clock:
    """One thread of one rank. `now_ps` is a lower bound of every time it will still emit."""

    __slots__ = (
        "clock_id",
        "heard_s",
        "in_heap",
        "now_ps",
        "rank",
        "reason",
        "request",
        "state",
        "waits_for",
    )

    def __init__(self, rank: int, clock_id: int, now_ps: int) -> None:
        self.rank = rank
        self.clock_id = clock_id
        self.now_ps = now_ps
        self.state = ClockState.RUNNING
        self.in_heap = False
        self.heard_s = 0.0  # real time of its last record
        # What a blocked clock waits for, kept for the deadlock report.
        self.request = 0
        self.reason = ""
        self.waits_for: Any = None

    def block(self, request: int, reason: str, waits_for: Any) -> None:
        """The thread cannot emit anything before `request` is answered."""
        self.state = ClockState.BLOCKED
        self.request = request
        self.reason = reason
        self.waits_for = waits_for


class Horizon:
    """The minimum over running clocks, kept by a heap whose entries are brought up to date only at the top.

    A clock that advances does not touch the heap, so a record costs O(1); each stale entry is pushed again at
    most once per look at the horizon.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, int, Clock]] = []

    def run(self, clock: Clock) -> None:
        """Lets `clock` hold the horizon at its `now_ps`."""
        clock.state = ClockState.RUNNING
        clock.waits_for = None
        if not clock.in_heap:
            clock.in_heap = True
            heapq.heappush(self._heap, (clock.now_ps, clock.rank, clock.clock_id, clock))

    def resume(self, clock: Clock, now_ps: int) -> None:
        """A blocked clock has been answered and runs on from `now_ps`."""
        if now_ps > clock.now_ps:
            clock.now_ps = now_ps
        self.run(clock)

    def holder(self) -> Clock | None:
        """The running clock that is furthest behind, or None."""
        heap = self._heap
        while heap:
            entry_ps, rank, clock_id, clock = heap[0]
            if clock.state != ClockState.RUNNING:
                heapq.heappop(heap)
                clock.in_heap = False
            elif clock.now_ps > entry_ps:
                heapq.heapreplace(heap, (clock.now_ps, rank, clock_id, clock))
            else:
                return clock
        return None

    def value_ps(self) -> int:
        """No clock will emit anything before this time; INFINITY_PS if none is running."""
        clock = self.holder()
        return INFINITY_PS if clock is None else clock.now_ps

    def running(self) -> list[Clock]:
        """All running clocks, furthest behind first (O(n log n), for reports and for the silence rule)."""
        clocks = [entry[3] for entry in self._heap if entry[3].state == ClockState.RUNNING]
        return sorted(clocks, key=lambda clock: (clock.now_ps, clock.rank, clock.clock_id))
