"""Causality of the key-value store: who may go on when, given who set what at which virtual time.

The real store moves the values; here only times are kept. A waiter resumes at the latest first POST of its
keys (or its own time). A POST that lies ahead of the waiter may still be undercut by an earlier POST of a
slower rank, so it counts only once the horizon has reached it; such waits are in `due_ps` order.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict, defaultdict

from phantom.engine.clocks import INFINITY_PS, Clock, ClockState

# Deleted keys are remembered for waiters whose record arrives after the deletion although their real wait was
# before.
_TOMBSTONES = 65536
# Values of one counter that are remembered for additions whose record is late.
_COUNTER_VALUES = 4096


class Wait:
    """A blocked WAIT. `missing` are keys that nobody has posted."""

    __slots__ = ("clock", "keys", "now_ps", "outside", "request")

    def __init__(self, clock: Clock, request: int, keys: tuple[str, ...], now_ps: int) -> None:
        self.clock = clock
        self.request = request
        self.keys = keys
        self.now_ps = now_ps
        self.outside = False  # the real wait is over, whoever posted


class Addition:
    """An ADD that waits for the records of the adders before it."""

    __slots__ = ("amount", "clock", "now_ps", "request", "result")

    def __init__(self, clock: Clock, request: int, amount: int, result: int, now_ps: int) -> None:
        self.clock = clock
        self.request = request
        self.amount = amount
        self.result = result
        self.now_ps = now_ps


Answer = tuple[Clock, int, int]  # clock, request, time


class Store:
    """First POST per key, waiters, and counters."""

    def __init__(self) -> None:
        self._first_ps: dict[str, int] = {}
        self._closed: OrderedDict[str, tuple[int, int]] = OrderedDict()  # key -> (first POST, FORGET)
        self._by_key: defaultdict[str, list[Wait]] = defaultdict(list)
        self._due: list[tuple[int, int, int, int, Wait]] = []
        self._pushes = 0
        self._waits: dict[tuple[int, int], Wait] = {}
        # Counters: latest clock of all adders up to a result, and those that wait for a gap to close.
        self._counter: defaultdict[str, dict[int, int]] = defaultdict(dict)
        self._gaps: defaultdict[str, list[Addition]] = defaultdict(list)

    def post(self, key: str, now_ps: int) -> list[Answer]:
        """POST. Returns waits that can be answered at once; later ones become due."""
        closed = self._closed.get(key)
        if closed is not None and now_ps < closed[1]:
            if now_ps < closed[0]:
                self._closed[key] = (now_ps, closed[1])
            return self._recheck(key)
        first_ps = self._first_ps.get(key)
        if first_ps is None or now_ps < first_ps:
            self._first_ps[key] = now_ps
            return self._recheck(key)
        return []

    def unknown(self, key: str) -> bool:
        """Whether nobody has posted `key` yet, so that no WAIT was answered by a later POST of it."""
        return key not in self._first_ps and key not in self._closed

    def forget(self, key: str, now_ps: int) -> None:
        """FORGET at `now_ps`. A WAIT with an earlier clock still sees the key."""
        first_ps = self._first_ps.pop(key, None)
        self._counter.pop(key, None)
        if first_ps is not None:
            self._closed[key] = (first_ps, now_ps)
            self._closed.move_to_end(key)
            if len(self._closed) > _TOMBSTONES:
                self._closed.popitem(last=False)

    def wait(self, wait: Wait) -> list[Answer]:
        """WAIT. Returns its answer if that is known already."""
        self._waits[wait.clock.rank, wait.request] = wait
        for key in wait.keys:
            self._by_key[key].append(wait)
        return self._settle(wait)

    def waited(self, rank: int, request: int) -> None:
        """WAITED: the real wait is over; a key without a POST came from outside the job."""
        wait = self._waits.get((rank, request))
        if wait is not None:
            wait.outside = True

    def _seen_ps(self, wait: Wait, key: str) -> int | None:
        closed = self._closed.get(key)
        if closed is not None and wait.now_ps < closed[1]:
            return closed[0]
        return self._first_ps.get(key)

    def _resume_ps(self, wait: Wait) -> int | None:
        latest = wait.now_ps
        for key in wait.keys:
            seen = self._seen_ps(wait, key)
            if seen is None:
                return None
            latest = max(latest, seen)
        return latest

    def _settle(self, wait: Wait) -> list[Answer]:
        resume_ps = self._resume_ps(wait)
        if resume_ps is None:
            return []
        if resume_ps <= wait.now_ps:
            return [self._finish(wait, wait.now_ps)]
        self._pushes += 1  # keeps the heap from comparing waits; never decides between two of them
        heapq.heappush(self._due, (resume_ps, wait.clock.rank, wait.request, self._pushes, wait))
        return []

    def _recheck(self, key: str) -> list[Answer]:
        answers: list[Answer] = []
        for wait in list(self._by_key.get(key, ())):
            answers += self._settle(wait)
        return answers

    def _finish(self, wait: Wait, time_ps: int) -> Answer:
        del self._waits[wait.clock.rank, wait.request]
        for key in wait.keys:
            waits = self._by_key[key]
            waits.remove(wait)
            if not waits:
                del self._by_key[key]
        return wait.clock, wait.request, time_ps

    def due_ps(self) -> int:
        """When the next wait can be answered, provided nobody posts earlier; INFINITY_PS if none."""
        while self._due:
            time_ps, rank, request, _, wait = self._due[0]
            current = self._resume_ps(wait) if self._waits.get((rank, request)) is wait else None
            if current == time_ps:
                return time_ps
            heapq.heappop(self._due)  # answered meanwhile, or an earlier POST has made an earlier entry
        return INFINITY_PS

    def take_due(self) -> Answer:
        """Answers the wait `due_ps` spoke of."""
        time_ps, _, _, _, wait = heapq.heappop(self._due)
        return self._finish(wait, time_ps)

    def add(self, key: str, addition: Addition) -> list[Answer]:
        """ADD. Returns the answers that follow: its own and of those that waited for it."""
        self._gaps[key].append(addition)
        known = self._counter[key]
        if not known:
            known[0] = 0
        answers: list[Answer] = []
        progress = True
        while progress:
            progress = False
            for waiting in sorted(self._gaps[key], key=lambda entry: (entry.result, -entry.amount)):
                before = known.get(waiting.result - waiting.amount)
                if before is None:
                    continue
                self._gaps[key].remove(waiting)
                answers.append(self._count(known, waiting, before))
                progress = True
        if not self._gaps[key]:
            del self._gaps[key]
        return answers

    @staticmethod
    def _count(known: dict[int, int], addition: Addition, before_ps: int) -> Answer:
        time_ps = max(before_ps, addition.now_ps)
        if addition.amount != 0:  # amount 0 only reads
            known[addition.result] = time_ps
            if len(known) > _COUNTER_VALUES:
                for result in sorted(known)[: _COUNTER_VALUES // 2]:
                    del known[result]
        return addition.clock, addition.request, time_ps

    def unposted(self) -> list[Wait]:
        """Waits for keys that no rank has posted, by rank."""
        waits = [
            wait
            for wait in self._waits.values()
            if wait.clock.state is ClockState.BLOCKED
            and wait.clock.request == wait.request
            and self._resume_ps(wait) is None
        ]
        return sorted(waits, key=lambda wait: (wait.clock.rank, wait.request))

    def missing_keys(self, wait: Wait) -> list[str]:
        """Keys of `wait` that nobody has posted."""
        return [key for key in wait.keys if self._seen_ps(wait, key) is None]

    def release(self, floor_ps: int) -> list[Answer]:
        """Nothing else can move: answers waits whose keys came from outside or were deleted, and counter
        gaps.

        A counter gap that nobody can fill means that the counter did not start at zero. Times are at least
        `floor_ps`.
        """
        answers: list[Answer] = []
        for wait in self.unposted():
            missing = self.missing_keys(wait)
            if wait.outside or all(key in self._closed for key in missing):
                seen = [self._seen_ps(wait, key) or 0 for key in wait.keys if key not in missing]
                answers.append(self._finish(wait, max([wait.now_ps, floor_ps, *seen])))
        for key in sorted(self._gaps):
            known = self._counter[key]
            for addition in sorted(self._gaps.pop(key), key=lambda entry: (entry.result, -entry.amount)):
                below = [time_ps for result, time_ps in known.items() if result < addition.result]
                answers.append(self._count(known, addition, max([floor_ps, *below])))
        return answers
