"""Totals of what a launch of a Triton kernel does."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, field


@dataclass
class Access:
    """Bytes that all programs together move through one argument; sectors count whole 32-byte units."""

    read_bytes: float = 0.0
    read_sector_bytes: float = 0.0
    written_bytes: float = 0.0
    written_sector_bytes: float = 0.0
    atomic_bytes: float = 0.0


@dataclass
class Footprint:
    """Totals of a launch, over all programs.

    `dot_flops` by type of the operands (`tf32` for fp32 products on tensor cores); `instructions` counts
    fp32 additions or what takes as long; `rounds` is how often a program waits for memory, one after the
    other; `unknown_loops` counts loops whose length nothing tells.
    """

    accesses: dict[int, Access] = field(default_factory=lambda: defaultdict(Access))
    dot_flops: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    instructions: float = 0.0
    rounds: float = 0.0
    unknown_loops: int = 0
    counted_arguments: set[int] = field(default_factory=set)

    def resembles(self, other: Footprint) -> bool:
        """Whether another program does the same work, within a hundredth."""
        return all(
            math.isclose(a, b, rel_tol=0.01)
            for a, b in (
                (sum(self.dot_flops.values()), sum(other.dot_flops.values())),
                (
                    sum(a.read_bytes for a in self.accesses.values()),
                    sum(a.read_bytes for a in other.accesses.values()),
                ),
                (self.rounds, other.rounds),
            )
        )

    @property
    def written(self) -> frozenset[int]:
        """Arguments whose tensors the kernel writes."""
        return frozenset(i for i, a in self.accesses.items() if a.written_bytes or a.atomic_bytes)


def combine(samples: list[Footprint], *, programs: int) -> Footprint:
    """The totals of a grid of `programs`, of which these were followed; `rounds` stays that of one."""
    scale = programs / len(samples)
    total = Footprint()
    for sample in samples:
        for position, access in sample.accesses.items():
            into = total.accesses[position]
            for name in vars(access):
                setattr(into, name, getattr(into, name) + getattr(access, name) * scale)
        for kind, flops in sample.dot_flops.items():
            total.dot_flops[kind] += flops * scale
        total.instructions += sample.instructions * scale
        total.rounds += sample.rounds / len(samples)
        total.unknown_loops = max(total.unknown_loops, sample.unknown_loops)
        total.counted_arguments |= sample.counted_arguments
    return total
