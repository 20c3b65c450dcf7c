"""Runs `phantom run` in a process of its own, for tests of whole jobs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
_NOTED_BY_INDUCTOR = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")
"""Inductor notes its folder in the environment of a process that imports it, such as that of other tests;
`phantom run` would take it for the user's."""


@dataclass(frozen=True)
class Simulated:
    """How `phantom run` ended and what it printed, the ranks' logs, summary.json (empty if there is none)."""

    status: int
    stdout: str
    stderr: str
    logs: list[str]
    summary: dict[str, Any]


def simulate(
    out: Path,
    *command: str,
    gpus: int,
    nodes: int = 1,
    options: tuple[str, ...] = ("-q",),
    environment: Mapping[str, str] | None = None,
    cwd: Path = ROOT,
    timeout_s: int = 280,
    fails: bool | None = False,
) -> Simulated:
    """Simulates `command` on nodes x gpus GPUs with results in `out`.

    The job must end well, or badly with `fails`; None takes either.
    """
    inherited = {name: value for name, value in os.environ.items() if name not in _NOTED_BY_INDUCTOR}
    run = [sys.executable, "-m", "phantom.cli.main", "run", *options, "--out", str(out)]
    done = subprocess.run(
        [*run, "-N", str(nodes), "-G", str(gpus), "--", *command],
        cwd=cwd,
        env={**inherited, "PYTHONPATH": str(ROOT), **(environment or {})},
        capture_output=True,
        text=True,
        timeout=timeout_s,
    )
    files = sorted((out / "ranks").glob("*.log"), key=lambda path: int(path.stem))
    logs = [path.read_text() for path in files]
    if fails is not None:
        said = "\n".join([done.stdout, done.stderr, *logs[:1]])
        assert (done.returncode != 0) == fails, f"exit status {done.returncode}\n{said}"
    file = out / "summary.json"
    summary = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    return Simulated(done.returncode, done.stdout, done.stderr, logs, summary)
