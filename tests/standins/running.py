"""Runs a script of one or more ranks with stand-ins and returns what it printed and its summary."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


def run_script(
    folder: Path, text: str, *options: str, gpus: int = 1, fails: bool = False, **variables: str
) -> tuple[str, dict[str, Any]]:
    """`phantom run OPTIONS script.py`; returns rank 0's log and summary.json. Fails as the job does unless
    `fails`, where it must."""
    script, out = folder / "script.py", folder / "run"
    script.write_text(text)
    command = [sys.executable, "-m", "phantom.cli.main", "run", "-q", "-G", str(gpus), "--out", str(out)]
    done = subprocess.run(
        [*command, *options, str(script)],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT)} | variables,
        capture_output=True,
        text=True,
        timeout=200,
    )
    log_file = out / "ranks" / "0.log"
    log = log_file.read_text() if log_file.exists() else ""
    assert (done.returncode != 0) == fails, f"status {done.returncode}\n{done.stderr}\n{log}"
    summary = json.loads((out / "summary.json").read_text()) if (out / "summary.json").exists() else {}
    return log + done.stderr, summary
