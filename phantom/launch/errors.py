"""What can go wrong before and beside the job, with its exit status (docs/running.md)."""

from __future__ import annotations

import errno
from pathlib import Path


class PhantomError(Exception):
    """An error for the user: its text names what is wrong and the remedy; `status` is the exit status."""

    status = 1


class UsageError(PhantomError):
    """Bad usage or configuration."""

    status = 2


class SimulatorError(PhantomError):
    """The simulator failed."""

    status = 4


def cannot_write(error: OSError, path: Path) -> str:
    """What the user is told where `path`, or a file of it, cannot be written."""
    what = f"cannot write {error.filename or path}"
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return (
            f"{what}: {error.strerror}; what was written so far is not whole: free some space and try again"
        )
    return f"{what}: {error.strerror}; give a path in a folder that you may write to"
