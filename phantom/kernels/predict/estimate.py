"""What a prediction rule returns."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Estimate:
    """Seconds of device time, device kernels launched, and bytes that the kernels allocate for themselves."""

    seconds: float
    launches: int = 1
    scratch_bytes: int = 0

    def __add__(self, other: Estimate) -> Estimate:
        """Return both one after the other; their scratch memory is taken to live at different times."""
        return Estimate(
            self.seconds + other.seconds,
            self.launches + other.launches,
            max(self.scratch_bytes, other.scratch_bytes),
        )
