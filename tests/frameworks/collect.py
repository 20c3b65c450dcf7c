"""Finds the cases of all frameworks: every `CASES` in this folder's cases_*.py."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path

from .case import Case


def collect_cases() -> Sequence[Case]:
    """All cases, by file name.

    Raises ValueError where two cases have one name.
    """
    cases: list[Case] = []
    for file in sorted(Path(__file__).parent.glob("cases_*.py")):
        module = importlib.import_module(f".{file.stem}", __package__)
        cases.extend(module.CASES)
    names = [case.name for case in cases]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"two cases are called {name!r}")
    return cases
