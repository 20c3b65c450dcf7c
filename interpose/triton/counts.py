"""Totals of what a launch of a Triton kernel does."""

from __future__ import annotations

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

    @property
    def written(self) -> frozenset[int]:
        """Arguments whose tensors the kernel writes."""
        return frozenset(i for i, a in self.accesses.items() if a.written_bytes or a.atomic_bytes)
