"""Programs that a job's launcher finds before the machine's own, since its hosts are simulated."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping
from pathlib import Path

TOOLS = ("ssh", "pdsh", "hostname")


def write(folder: Path, *, nodes: int, path: str, once: bool) -> dict[str, str]:
    """Writes the programs into `folder` and returns the variables with which a job finds them.

    `once`: the command is started once and reaches its hosts itself; else such an attempt is an error.
    """
    folder.mkdir()
    program = Path(__file__).with_name("remote_shell.py")
    for tool in TOOLS:
        script = folder / tool
        words = (sys.executable, "-I", str(program), tool)
        script.write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n')
        script.chmod(0o755)
    variables: Mapping[str, str] = {
        "PATH": f"{folder}:{path}",
        "PHANTOM_NODES": str(nodes),
        "PHANTOM_HOSTS": str(folder / "hosts"),
        "PHANTOM_REMOTE": "yes" if once else "no",
    }
    return dict(variables)
