"""Stand-in of bitsandbytes.functional: quantized matrices are not covered."""

from interpose.standins.surface import missing_names


class QuantState:
    """What describes a quantized matrix; none is ever made here."""


__getattr__ = missing_names(__name__)
