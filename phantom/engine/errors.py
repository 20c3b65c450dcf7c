"""What ends a job from the engine's side."""

from __future__ import annotations

from phantom.wire.fields import AbortKind
from phantom.wire.limits import MAX_PS


class JobError(Exception):
    """The job cannot go on."""

    def __init__(self, kind: AbortKind, message: str) -> None:
        super().__init__(message)
        self.kind = AbortKind(kind)
        self.message = message


def protocol_error(rank: int, message: str) -> JobError:
    """A rank sent something that makes no sense; most likely the two sides are of different versions."""
    return JobError(AbortKind.protocol, f"rank {rank}: {message}")


def beyond_time(rank: int, time_ps: int) -> JobError:
    """Virtual time has an end; what lies beyond it is a fault of a sender rather than a long job."""
    return protocol_error(rank, f"reaches {time_ps / 1e12:.6g} s; virtual time ends at {MAX_PS / 1e12:.6g} s")
