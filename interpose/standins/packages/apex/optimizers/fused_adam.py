"""Where Apex defines FusedAdam."""

from interpose.standins.optimizers import FusedAdam
from interpose.standins.surface import missing_names

__all__ = ["FusedAdam"]
__getattr__ = missing_names(__name__)
