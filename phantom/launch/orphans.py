"""Finds and ends what a job left running: launchers start workers in sessions of their own."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

GRACE_S = 2.0


def processes_of(mark: str) -> list[int]:
    """Pids of this user's processes whose environment has the entry `mark` ("NAME=value"), without this
    one."""
    wanted = mark.encode()
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            if wanted in (entry / "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
        except OSError:
            continue  # gone, or another user's
    return sorted(found)


def end(mark: str) -> int:
    """Ends every process that carries `mark`: SIGTERM, after a grace SIGKILL. Returns how many there were."""
    left = processes_of(mark)
    count = len(left)
    for number, wait_s in ((signal.SIGTERM, GRACE_S), (signal.SIGKILL, GRACE_S)):
        for pid in left:
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                continue
        deadline = time.monotonic() + wait_s
        while left and time.monotonic() < deadline:
            time.sleep(0.02)
            left = [pid for pid in left if _alive(pid)]
        if not left:
            break
    return count


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
