"""Tests that change what torch is live in processes of their own, one per file.

A process can attach torch to the virtual device once and before anything imports it, so the files
in ISOLATED are not collected beside others: tests/test_isolated.py runs each of them in a fresh
interpreter. Naming only such files or folders on the command line runs them directly.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from isolation import ISOLATED


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leaves isolated files out unless only such files were asked for."""
    here = Path(__file__).parent
    asked = [Path(str(argument).split("::")[0]).resolve() for argument in config.args]
    only_isolated = all(
        any((here / folder) in (path, *path.parents) for folder in ISOLATED) for path in asked
    )
    if only_isolated or not collection_path.is_relative_to(here):
        return None
    return True if collection_path.relative_to(here).parts[:1] in {(folder,) for folder in ISOLATED} else None
