"""What the engine itself observes: steps, collectives, warnings; and what ranks report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from phantom.engine.operations import PendingOperation

_MOST_SIZES = 2048


@dataclass
class CollectiveTotal:
    """All collectives of one kind, group size and message size. Times in picoseconds."""

    kind: str
    ranks: int
    size_bytes: int
    backend: str
    example: Any
    count: int = 0
    total_ps: int = 0


@dataclass
class RankReport:
    """What one rank told about itself (STATS and FAULT), steps collected, the rest as last said."""

    steps: list[list[int]] = field(default_factory=list)
    latest: dict[str, Any] = field(default_factory=dict)
    faults: list[dict[str, Any]] = field(default_factory=list)

    def update(self, stats: dict[str, Any]) -> None:
        """STATS: `steps` holds new steps only, everything else replaces the earlier value."""
        self.steps.extend(stats.get("steps") or ())
        for key, value in stats.items():
            if key != "steps":
                self.latest[key] = value


class Statistics:
    """Totals over the job, cheap enough to update per operation."""

    def __init__(self, world_size: int) -> None:
        self.ranks = [RankReport() for _ in range(world_size)]
        self.step_end_ps: dict[int, int] = {}
        self.step_count_by_rank: Counter[int] = Counter()
        self.collectives: dict[tuple[Any, ...], CollectiveTotal] = {}
        self.warnings: Counter[str] = Counter()
        self.last_ps = 0
        # Called with every operation whose end is final, and that end.
        self.observer: Callable[[PendingOperation, int], None] | None = None

    def completed(self, operation: PendingOperation, end_ps: int) -> None:
        """An operation's end is final."""
        carried = operation.operation
        assert carried is not None
        if end_ps > self.last_ps:
            self.last_ps = end_ps
        size_bytes = carried.size_bytes
        key = (operation.kind, len(carried.ranks), size_bytes, carried.backend, carried.direction)
        total = self.collectives.get(key)
        if total is None and len(self.collectives) >= _MOST_SIZES:
            # Sizes that change all the time are put together by powers of two.
            size_bytes = 1 << (size_bytes - 1).bit_length() if size_bytes > 0 else 0
            key = (*key[:2], size_bytes, *key[3:])
            total = self.collectives.get(key)
        if total is None:
            total = CollectiveTotal(operation.kind, len(carried.ranks), size_bytes, carried.backend, carried)
            self.collectives[key] = total
        elif carried.ranks < total.example.ranks:
            total.example = carried  # the same example whatever came first
        total.count += 1
        total.total_ps += end_ps - operation.start_ps
        if self.observer is not None:
            self.observer(operation, end_ps)

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
