"""What can go wrong before and beside the job, with the exit status of contract.md."""

from __future__ import annotations


class PhantomError(Exception):
    """An error for the user: its text names what is wrong and the remedy; `status` is the exit status."""

    status = 1


class UsageError(PhantomError):
    """Bad usage or configuration."""

    status = 2


class SimulatorError(PhantomError):
    """The simulator failed."""

    status = 4
