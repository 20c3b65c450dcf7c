"""Runs one case and says what came of it."""

from __future__ import annotations

import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from .case import Case

ROOT = Path(__file__).resolve().parents[2]
LOG_TAIL = 3000


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """A row of docs/frameworks.md. `step_virtual_s` is the median step, None without steps."""

    name: str
    framework: str
    version: str
    feature: str
    command: str
    nodes: int
    gpus_per_node: int
    cluster: str
    status: str
    """`ok`, `refused` (with the error it must end with), `fails without phantom too`, `not run: ...`, else
    `failed: ...`."""
    step_virtual_s: float | None = None
    peak_memory_bytes: int | None = None
    steps: int = 0
    unpriced_share: float = 0.0
    wall_s: float = 0.0
    output: str = ""
    """End of what was printed, where the case failed."""

    @property
    def failed(self) -> bool:
        return self.status.startswith("failed")

    def row(self) -> dict[str, Any]:
        return asdict(self)


def installed(distribution: str) -> str:
    """The version of an installed distribution; "-" if it is not there."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return "-"


def run_case(case: Case, folder: Path, paths: Mapping[str, str] | None = None) -> Outcome:
    """Runs a case in `folder` (made). `paths`: checkouts by name, see `Case.needs_path`."""
    given = paths or {}
    checkout = given.get(case.needs_path or "")
    if case.needs_path is not None and checkout is None:
        return _outcome(case, status=f"not run: wants {case.needs_path.upper()}=PATH")
    out = folder / "run"
    shutil.rmtree(out, ignore_errors=True)  # of an earlier matrix, whose figures these are not
    folder.mkdir(parents=True, exist_ok=True)
    if case.prepare is not None:
        case.prepare(folder)
    stands_for = {
        "work": str(folder),
        "workloads": str(ROOT / "tests" / "workloads"),
        "examples": str(ROOT / "examples"),
        "path": checkout or "",
    }
    environment = {
        **os.environ,
        "HF_HUB_OFFLINE": "1",
        "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        **{name: text.format(**stands_for) for name, text in case.environment.items()},
    }
    command = phantom_command(case, out, stands_for)
    process = subprocess.Popen(
        command,
        cwd=checkout or folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        output, _ = process.communicate(timeout=case.timeout_s)
    except subprocess.TimeoutExpired:
        process.terminate()  # phantom ends the job's processes and writes a partial summary
        output, _ = process.communicate(timeout=60)
        return _outcome(case, out, status=f"failed: not done after {case.timeout_s:.0f} s", output=output)
    return judged(case, out, process.returncode, output)


def phantom_command(case: Case, out: Path, stands_for: Mapping[str, str]) -> Sequence[str]:
    """The command line of a case, with this Python and this checkout's phantom."""
    filled = [word.format(**stands_for) for word in (*case.options, "--", *case.command)]
    return [
        sys.executable, "-m", "phantom.cli.main", "run", "--out", str(out), "--cluster", case.cluster,
        "-N", str(case.nodes), "-G", str(case.gpus_per_node), *filled,
    ]  # fmt: skip


def judged(case: Case, out: Path, exit_status: int, output: str) -> Outcome:
    """What a finished run amounts to."""
    for words, expected in ((case.refused, "refused"), (case.fails_anyway, "fails without phantom too")):
        if words is None:
            continue
        if exit_status != 0 and words in output:
            return _outcome(case, out, status=expected)
        status = f"failed: no error with “{words}”, exit status {exit_status}"
        return _outcome(case, out, status=status, output=output)
    outcome = _outcome(case, out, status="ok", output=output)
    if exit_status != 0:
        return _outcome(case, out, status=f"failed: exit status {exit_status}", output=output)
    if outcome.steps == 0:
        return _outcome(case, out, status="failed: no step was seen", output=output)
    if case.steps is not None and outcome.steps != case.steps:
        return _outcome(case, out, status=f"failed: {outcome.steps} steps, not {case.steps}", output=output)
    if outcome.unpriced_share > 0:
        return _outcome(case, out, status="failed: kernels without a cost", output=output)
    return outcome


def _outcome(case: Case, out: Path | None = None, *, status: str, output: str = "") -> Outcome:
    figures: dict[str, Any] = {}
    if out is not None and (out / "summary.json").exists():
        summary = json.loads((out / "summary.json").read_text())
        figures = {
            "step_virtual_s": summary["step_virtual_s"].get("median"),
            "peak_memory_bytes": max((rank["peak_allocated_bytes"] for rank in summary["ranks"]), default=0),
            "steps": len(summary["steps"]),
            "unpriced_share": summary["coverage"].get("unpriced", 0.0),
            "wall_s": summary["wall_s"],
        }
    return Outcome(
        name=case.name,
        framework=case.framework,
        version=installed(case.version),
        feature=case.feature,
        command=" ".join(case.command),
        nodes=case.nodes,
        gpus_per_node=case.gpus_per_node,
        cluster=case.cluster,
        status=status,
        output=output[-LOG_TAIL:] if status.startswith("failed") else "",
        **figures,
    )
