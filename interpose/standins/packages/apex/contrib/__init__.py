"""Part of Apex's stand-in."""

from interpose.standins.surface import missing_names

__getattr__ = missing_names(__name__)
