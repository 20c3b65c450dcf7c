"""The answer to a cost request."""

from __future__ import annotations

from dataclasses import dataclass

SOURCES = ("measured", "predicted", "unpriced", "none")


@dataclass(frozen=True)
class Cost:
    """Duration in picoseconds, where it comes from, the kernel's class, device kernels launched, scratch
    memory in bytes.

    *source*: ``measured``, ``predicted``, ``unpriced`` (an operator nobody can price: the time of its
    bytes, and counted) or
    ``none`` (nothing runs on the device).  *ideal_ps*: its matrix products at the peak of their data type
    (0 for other kernels), for the utilisation of the device.
    """

    duration_ps: int
    source: str
    klass: str
    launches: int
    scratch_bytes: int
    ideal_ps: int = 0

    def wire(self) -> list[int | str]:
        """Return the list that the service answers with."""
        return [
            self.duration_ps,
            self.source,
            self.klass,
            self.launches,
            self.scratch_bytes,
            self.ideal_ps,
        ]
