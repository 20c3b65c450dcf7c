"""What waits for the end of a node: a blocked thread, or the end of a step. Times in picoseconds."""

from __future__ import annotations

from phantom.engine.clocks import Clock


class SyncWaiter:
    """A blocked thread that goes on at max(base, end of the node + offset)."""

    __slots__ = ("base_ps", "clock", "offset_ps", "request")

    def __init__(self, clock: Clock, request: int, offset_ps: int, base_ps: int) -> None:
        self.clock = clock
        self.request = request
        self.offset_ps = offset_ps
        self.base_ps = base_ps


class StepWaiter:
    """The end of a rank's step: max(base, end of the node + offset)."""

    __slots__ = ("base_ps", "index", "offset_ps", "rank")

    def __init__(self, rank: int, index: int, offset_ps: int, base_ps: int) -> None:
        self.rank = rank
        self.index = index
        self.offset_ps = offset_ps
        self.base_ps = base_ps
