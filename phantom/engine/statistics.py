"""What the engine itself observes: steps, collectives, warnings; and what ranks report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any

from netsim.operation import Operation
from phantom.engine.operations import PendingOperation
from phantom.wire.fields import Account, OutOfMemory, SettledStep

_MOST_SIZES = 2048
_MOST_UNEVEN = 256


@dataclass
class CollectiveTotal:
    """All collectives of one kind, group size, placement and message size. Times in picoseconds.

    `bytes_sum` is the sum of the real sizes, where `size_bytes` stands for several. `uneven`: how often each
    uneven all_to_all was there, for what the links allow; None where there were too many.
    """

    kind: str
    ranks: int
    size_bytes: int
    backend: str
    example: Operation
    count: int = 0
    total_ps: int = 0
    bytes_sum: int = 0
    uneven: Counter[Operation] | None = field(default_factory=Counter)

    def add(self, carried: Operation, duration_ps: int) -> None:
        """One more, that took so long."""
        self.count += 1
        self.total_ps += duration_ps
        self.bytes_sum += carried.size_bytes
        if carried.send_counts is not None and self.uneven is not None:
            self.uneven[carried] += 1
            if len(self.uneven) > _MOST_UNEVEN:
                self.uneven = None


@dataclass
class RankReport:
    """What one rank told about itself (STATS and FAULT), steps collected, the rest as last said."""

    steps: list[SettledStep] = field(default_factory=list)
    latest: Account = field(default_factory=Account)
    faults: list[OutOfMemory] = field(default_factory=list)

    def update(self, account: Account) -> None:
        """STATS: `steps` holds new steps only, everything else replaces the earlier value."""
        self.steps.extend(account.steps)
        self.latest = account


class Statistics:
    """Totals over the job, cheap enough to update per operation."""

    def __init__(self, world_size: int) -> None:
        self.ranks = [RankReport() for _ in range(world_size)]
        self.step_end_ps: dict[int, int] = {}
        self.step_count_by_rank: Counter[int] = Counter()
        self.collectives: dict[tuple[Any, ...], CollectiveTotal] = {}
        self.warnings: Counter[str] = Counter()
        self.last_ps = 0
        # Tells apart groups of one size that lie on other links. Set by whoever knows the cluster.
        self.placement: Callable[[Operation], Hashable] = lambda operation: None
        # Called with every operation whose end is final, and that end.
        self.observer: Callable[[PendingOperation, int], None] | None = None

    def completed(self, operation: PendingOperation, end_ps: int) -> None:
        """An operation's end is final."""
        carried = operation.operation
        assert carried is not None
        if end_ps > self.last_ps:
            self.last_ps = end_ps
        self.add(operation.kind, carried, end_ps - operation.start_ps)
        if self.observer is not None:
            self.observer(operation, end_ps)

    def add(self, kind: str, carried: Operation, duration_ps: int) -> None:
        """Counts an operation that took so long among its like."""
        size_bytes = carried.size_bytes
        uneven = carried.send_counts is not None
        place = (carried.backend, carried.direction, uneven, self.placement(carried))
        key = (kind, len(carried.ranks), size_bytes, *place)
        total = self.collectives.get(key)
        if total is None and len(self.collectives) >= _MOST_SIZES:
            # Sizes that change all the time are put together by powers of two.
            size_bytes = 1 << (size_bytes - 1).bit_length() if size_bytes > 0 else 0
            key = (*key[:2], size_bytes, *key[3:])
            total = self.collectives.get(key)
        if total is None:
            total = CollectiveTotal(kind, len(carried.ranks), size_bytes, carried.backend, carried)
            self.collectives[key] = total
        elif carried.ranks < total.example.ranks:
            total.example = carried  # the same example whatever came first
        total.add(carried, duration_ps)

    def step(self, rank: int, index: int, end_ps: int) -> None:
        """A rank's device tail at the end of step `index`; the step ends with the last rank."""
        if end_ps > self.step_end_ps.get(index, -1):
            self.step_end_ps[index] = end_ps
        self.step_count_by_rank[rank] = max(self.step_count_by_rank[rank], index + 1)
        if end_ps > self.last_ps:
            self.last_ps = end_ps

    def warn(self, message: str) -> None:
        """Counts a warning."""
        self.warnings[message] += 1
