"""Stand-in of flash_attn.layers."""

from interpose.standins.surface import missing_names

__getattr__ = missing_names(__name__)
