"""What ends a job from the engine's side."""

from __future__ import annotations


class JobError(Exception):
    """The job cannot go on. `kind` is one of phantom.wire.records.ABORT_KINDS."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message


def protocol_error(rank: int, message: str) -> JobError:
    """A rank sent something that makes no sense; most likely the two sides are of different versions."""
    return JobError("protocol", f"rank {rank}: {message}")
