"""What the ranks record: chosen by `phantom run`, carried in PHANTOM_CONFIG as `spool`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

UNLIMITED_STEPS = 1 << 62
DEFAULT_STEPS = (0, 3)
DEFAULT_RANKS = 64
"""Without --timeline the first steps of the first ranks are recorded, for the pictures in report.html."""


def parse_steps(text: str, *, option: str = "--steps") -> tuple[int, int]:
    """`A:B` are the steps A <= index < B; either may be left out; `A` alone is that step.

    Raises ValueError that says what is allowed for the option.
    """
    match = re.fullmatch(r"(\d*)(:?)(\d*)", text.strip())
    if match is None or text.strip() == "":
        raise ValueError(f"{option}: {text!r} is not a range of steps; write A:B, A:, :B or A")
    first = int(match[1] or 0)
    last = int(match[3]) if match[3] else UNLIMITED_STEPS
    if not match[2]:
        last = first + 1
    if last <= first:
        raise ValueError(f"{option}: {text!r} holds no step: the end must be greater than the start")
    return first, last


def parse_ranks(text: str, *, world_size: int, option: str = "--ranks") -> list[int]:
    """`0,3,8-11` as a sorted list. Raises ValueError for anything else and for ranks that do not exist."""
    ranks: set[int] = set()
    for part in text.split(","):
        match = re.fullmatch(r"(\d+)(?:-(\d+))?", part.strip())
        if match is None:
            raise ValueError(f"{option}: {part!r} is not a rank; write a list like 0,3,8-11")
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first or last >= world_size:
            raise ValueError(f"{option}: {part!r} is outside the job's ranks 0 to {world_size - 1}")
        ranks.update(range(first, last + 1))
    return sorted(ranks)


def spool_config(
    out: Path,
    *,
    world_size: int,
    timeline: bool = False,
    steps: tuple[int, int] | None = None,
    ranks: list[int] | None = None,
) -> dict[str, Any]:
    """The value of `spool` in PHANTOM_CONFIG: {"folder", "steps": [first, end], "ranks": None for all}."""
    if steps is None:
        steps = (0, UNLIMITED_STEPS) if timeline else DEFAULT_STEPS
    if ranks is None and not timeline and world_size > DEFAULT_RANKS:
        ranks = list(range(DEFAULT_RANKS))
    return {"folder": str(out / "spool"), "steps": list(steps), "ranks": ranks}
