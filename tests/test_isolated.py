"""Runs every test file that attaches torch in a process of its own (tests/conftest.py says why)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from isolation import isolated_files


@pytest.mark.parametrize("path", isolated_files(), ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_file(path: Path) -> None:
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-p",
            "no:cacheprovider",
            "-p",
            "no:xdist",
            "--timeout=250",
            str(path),
        ],
        capture_output=True,
        text=True,
        timeout=290,
    )
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    assert "passed" in done.stdout
