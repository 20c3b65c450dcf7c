"""Exact, tiny networks for the engine's tests, with the interface of netsim.Network."""

from __future__ import annotations

from fractions import Fraction

from netsim.operation import Operation


class ReplayNetwork:
    """Keeps every start and recomputes all from time 0, exactly. Slow and obviously right."""

    def __init__(self) -> None:
        self._starts: dict[int, tuple[int, Operation]] = {}
        self._now_ps = 0
        self._committed_ps = 0
        self.commits = 0

    def ends(self) -> dict[int, int]:
        """End of every operation started so far, assuming nothing else starts."""
        raise NotImplementedError

    def start(self, op_id: int, op: Operation, start_ps: int) -> None:
        assert start_ps >= self._now_ps, "started in the network's past"
        assert op_id not in self._starts
        assert 0 < op_id < 1 << 63
        self._now_ps = start_ps
        self._starts[op_id] = (start_ps, op)

    def next_event_ps(self) -> int | None:
        return min((end for end in self.ends().values() if end > self._now_ps), default=None)

    def advance(self, to_ps: int) -> list[tuple[int, int]]:
        before, self._now_ps = self._now_ps, to_ps
        done = [(op_id, end) for op_id, end in self.ends().items() if before < end <= to_ps]
        return sorted(done, key=lambda entry: (entry[1], entry[0]))

    def rollback(self, to_ps: int) -> None:
        assert self._committed_ps <= to_ps < self._now_ps
        self._starts = {op_id: entry for op_id, entry in self._starts.items() if entry[0] <= to_ps}
        self._now_ps = to_ps

    def commit(self, to_ps: int) -> None:
        assert self._committed_ps <= to_ps <= self._now_ps
        self._committed_ps = to_ps
        self.commits += 1


class FixedNetwork(ReplayNetwork):
    """Latency plus bytes over bandwidth, no sharing."""

    def ends(self) -> dict[int, int]:
        return {op_id: start + 5_000 + op.size_bytes * 7 for op_id, (start, op) in self._starts.items()}


class SharedNetwork(ReplayNetwork):
    """One link shared equally by all operations under way: whoever starts slows the others."""

    rate = Fraction(1, 5)  # bytes per ps

    def ends(self) -> dict[int, int]:
        waiting = sorted((start, op_id, op.size_bytes + 100) for op_id, (start, op) in self._starts.items())
        left: dict[int, Fraction] = {}
        ends: dict[int, int] = {}
        now = Fraction(0)
        while waiting or left:
            share = self.rate / len(left) if left else Fraction(0)
            finish = now + min(left.values()) / share if left else None
            if waiting and (finish is None or waiting[0][0] <= finish):
                then = Fraction(waiting[0][0])
            else:
                assert finish is not None
                then = finish
            left = {op_id: rest - share * (then - now) for op_id, rest in left.items()}
            now = then
            for op_id in [op_id for op_id, rest in left.items() if rest == 0]:
                del left[op_id]
                ends[op_id] = -((-now.numerator) // now.denominator)  # whole picoseconds, upwards
            while waiting and waiting[0][0] <= now:
                _, op_id, size = waiting.pop(0)
                left[op_id] = Fraction(size)
        return ends
