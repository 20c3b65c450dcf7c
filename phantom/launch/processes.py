"""Keeping child processes tied to their parent, and seeing which of them are stopped."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from pathlib import Path

PR_SET_PDEATHSIG = 1


def die_with_parent(expected_parent: int) -> None:
    """Asks the kernel to kill this process when its parent dies (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != expected_parent:
            os._exit(1)


def is_stopped(pid: int) -> bool:
    """Whether a process was stopped by a signal (SIGSTOP) or a debugger."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in ("T", "t")
    except OSError:
        return False
