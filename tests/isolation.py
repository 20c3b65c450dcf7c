"""Which test files want a process of their own (tests/conftest.py says why)."""

from __future__ import annotations

from pathlib import Path

ISOLATED = ("interpose_device", "interpose_dispatch", "interpose_python", "interpose_triton")


def isolated_files() -> list[Path]:
    """All test files that want a process of their own."""
    here = Path(__file__).parent
    return sorted(path for folder in ISOLATED for path in (here / folder).glob("test_*.py"))
