"""Where the library defines RMSNorm."""

from interpose.standins.surface import missing_names

from .layernorm import RMSNorm

__all__ = ["RMSNorm"]
__getattr__ = missing_names(__name__)
