"""Stand-in of grouped_gemm: docs/stand-ins.md lists what it covers."""

from interpose.standins.surface import missing_names

from . import backend, ops

__all__ = ["backend", "ops"]
__getattr__ = missing_names(__name__)
