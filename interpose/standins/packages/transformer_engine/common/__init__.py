"""What does not depend on the framework."""

from interpose.standins.surface import missing_names

from . import recipe

__all__ = ["recipe"]
__getattr__ = missing_names(__name__)
