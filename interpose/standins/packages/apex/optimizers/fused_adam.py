"""Where Apex defines FusedAdam."""

from interpose.standins.optimizers import FusedAdam

__all__ = ["FusedAdam"]
