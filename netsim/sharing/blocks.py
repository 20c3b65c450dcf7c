"""Running flows with their history: remaining bytes are brought up to date only when a rate changes."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from netsim.parts import Floats, Ints, Part, Shape

PS = 1e-12
NEVER = 1 << 62


@dataclass(eq=False, slots=True)
class Flight:
    """One operation under way; `end_ps` is known once all its blocks have ended."""

    op_id: int
    start_ps: int
    blocks: list[Block] = field(default_factory=list)
    open_blocks: int = 0
    end_ps: int | None = None


class Block:
    """The flows of one part of an operation.

    History is a list of (time, remaining bytes, level) of which the last entry holds now; an entry is added
    only when a level changes. What was assigned at one instant replaces what was assigned earlier at the
    same instant, so the state is the same however many times an instant is visited. `version` outdates
    queued events.
    """

    __slots__ = (
        "begin_ps",
        "end_ps",
        "flight",
        "history",
        "index",
        "next_ps",
        "shape",
        "sort_key",
        "version",
    )

    history: list[Any]

    def __init__(self, flight: Flight, index: int, part: Part, shape: Shape | None) -> None:
        self.flight = flight
        self.history = []
        self.index = index
        self.shape = shape
        self.begin_ps = flight.start_ps + part.latency_ps
        self.end_ps: int | None = None
        self.next_ps = self.begin_ps
        self.version = 0
        sizes = part.sizes.tobytes() if shape is not None else b""
        key = shape.key if shape is not None else b""
        self.sort_key = (key, self.begin_ps, sizes, flight.start_ps, flight.op_id, index)

    def __lt__(self, other: Block) -> bool:
        # Queue entries tie only where an operation was dropped and started again: the older one is outdated.
        return False

    @property
    def waiting(self) -> bool:
        """Still in its start-up time."""
        return not self.history and self.end_ps is None

    def assign(self, now_ps: int, level: Floats) -> bool:
        """Give all flows their levels from `now_ps` on; return whether that changed anything."""
        raise NotImplementedError

    def finish(self, now_ps: int) -> bool:
        """Take out flows that are through at `now_ps`; return whether none is left."""
        raise NotImplementedError

    def rollback(self, to_ps: int) -> None:
        """Forget what happened after `to_ps`."""
        history = self.history
        while history and history[-1][0] > to_ps:
            history.pop()
        if self.end_ps is not None and self.end_ps > to_ps:
            self.end_ps = None
        if self.end_ps is None:
            if history:
                self._reschedule()
            else:
                self._restart()

    def trim(self, horizon_ps: int) -> None:
        """Drop history that no rollback to `horizon_ps` or later needs."""
        history = self.history
        while len(history) > 1 and history[1][0] < horizon_ps:
            del history[0]

    def carried(self, entry: Any) -> tuple[Ints, Floats]:
        """Links, all different, and the bytes/s on each while `entry` of the history holds."""
        raise NotImplementedError

    def _reschedule(self) -> None:
        """Work out the next event from the last entry."""
        raise NotImplementedError

    def _restart(self) -> None:
        """Back into the start-up time."""
        self.next_ps = self.begin_ps
        self.version += 1

    def active_key(self) -> bytes:
        """What besides the shape the solver's input depends on: the flows still open."""
        return b""


def _finish_ps(time_ps: int, remaining: float, rate: float) -> int:
    if remaining <= 0:
        return time_ps
    if rate <= 0 or math.isinf(remaining):
        return NEVER
    return time_ps + math.ceil(remaining / rate / PS)


class SingleBlock(Block):
    """One flow or coflow, or a mere start-up time."""

    __slots__ = ("size", "weight")

    def __init__(self, flight: Flight, index: int, part: Part, shape: Shape | None) -> None:
        super().__init__(flight, index, part, shape)
        self.size = float(part.sizes[0]) if shape is not None else 0.0
        self.weight = float(shape.weights[0]) if shape is not None else 1.0

    def assign(self, now_ps: int, level: Floats) -> bool:
        value = float(level[0])
        history = self.history
        revisited = bool(history) and history[-1][0] == now_ps
        if revisited:
            history.pop()
        if not history:
            history.append((now_ps, self.size, value))
        else:
            time, remaining, old = history[-1]
            if value == old:
                if revisited:
                    self._reschedule()
                return revisited
            remaining = max(0.0, remaining - old * self.weight * ((now_ps - time) * PS))
            history.append((now_ps, remaining, value))
        self._reschedule()
        return True

    def _reschedule(self) -> None:
        time, remaining, level = self.history[-1]
        self.next_ps = _finish_ps(time, remaining, level * self.weight)
        self.version += 1

    def finish(self, now_ps: int) -> bool:
        return self.next_ps <= now_ps

    def carried(self, entry: Any) -> tuple[Ints, Floats]:
        assert self.shape is not None
        return self.shape.links, self.shape.loads * (entry[2] * self.weight)


class ManyBlock(Block):
    """Independent flows of one operation, as arrays."""

    __slots__ = ("finish_at", "open", "sizes")

    def __init__(self, flight: Flight, index: int, part: Part, shape: Shape) -> None:
        super().__init__(flight, index, part, shape)
        self.sizes = part.sizes
        self.open = np.ones(shape.flows, dtype=bool)
        self.finish_at = np.zeros(0, dtype=np.int64)

    def assign(self, now_ps: int, level: Floats) -> bool:
        history = self.history
        revisited = bool(history) and history[-1][0] == now_ps
        if revisited:
            history.pop()
        if not history:
            history.append((now_ps, self.sizes, level, self.open))
        else:
            time, remaining, old, was_open = history[-1]
            if np.array_equal(self.open, was_open) and np.array_equal(level, old):
                if revisited:
                    self._reschedule()
                return revisited
            assert self.shape is not None
            passed = old * self.shape.weights * ((now_ps - time) * PS)
            remaining = np.where(self.open, np.maximum(0.0, remaining - passed), 0.0)
            history.append((now_ps, remaining, level, self.open))
        self._reschedule()
        return True

    def _reschedule(self) -> None:
        time, remaining, level, is_open = self.history[-1]
        assert self.shape is not None
        rate = level * self.shape.weights
        ticks = np.full(len(rate), float(NEVER))
        np.divide(remaining, rate * PS, out=ticks, where=rate > 0)
        ticks[remaining <= 0] = 0
        finish = time + np.ceil(np.minimum(ticks, float(1 << 61))).astype(np.int64)
        self.finish_at = np.where(is_open, finish, NEVER)
        self.next_ps = int(self.finish_at.min())
        self.open = is_open
        self.version += 1

    def finish(self, now_ps: int) -> bool:
        self.open = self.open & (self.finish_at > now_ps)
        return not self.open.any()

    def carried(self, entry: Any) -> tuple[Ints, Floats]:
        shape = self.shape
        assert shape is not None
        rate = np.where(entry[3], entry[2] * shape.weights, 0.0)
        by_link = np.bincount(shape.links, weights=shape.loads * rate[shape.row]).astype(np.float64)
        return shape.touched, by_link[shape.touched]

    def _restart(self) -> None:
        self.open = np.ones(len(self.sizes), dtype=bool)
        super()._restart()

    def active_key(self) -> bytes:
        return np.packbits(self.open).tobytes()
