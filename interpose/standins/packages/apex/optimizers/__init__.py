"""Apex's fused optimizers."""

from interpose.standins.optimizers import FusedAdam, FusedLAMB, FusedSGD
from interpose.standins.surface import missing_names

__all__ = ["FusedAdam", "FusedLAMB", "FusedSGD"]
__getattr__ = missing_names(__name__)
