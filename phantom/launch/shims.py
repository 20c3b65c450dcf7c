"""Programs that a job finds before the machine's own, since its hosts and GPUs are simulated."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping
from pathlib import Path

HOST_TOOLS = ("ssh", "pdsh", "hostname")


def write_gpu_tools(folder: Path, *, path: str) -> dict[str, str]:
    """Writes `nvidia-smi` into a new `folder` and returns the variables with which a job finds it."""
    folder.mkdir(parents=True)
    _write(folder / "nvidia-smi", "nvidia_smi.py")
    return {"PATH": f"{folder}:{path}"}


def write_host_tools(folder: Path, *, nodes: int, path: str, once: bool) -> dict[str, str]:
    """Writes the programs that reach hosts into a new `folder` and returns the variables for a job.

    `once`: the command is started once and reaches its hosts itself; else such an attempt is an error.
    """
    folder.mkdir(parents=True)
    for tool in HOST_TOOLS:
        _write(folder / tool, "remote_shell.py", tool)
    variables: Mapping[str, str] = {
        "PATH": f"{folder}:{path}",
        "PHANTOM_NODES": str(nodes),
        "PHANTOM_HOSTS": str(folder / "hosts"),
        "PHANTOM_REMOTE": "yes" if once else "no",
    }
    return dict(variables)


def _write(script: Path, program: str, *arguments: str) -> None:
    words = (sys.executable, "-I", str(Path(__file__).with_name(program)), *arguments)
    script.write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n')
    script.chmod(0o755)
