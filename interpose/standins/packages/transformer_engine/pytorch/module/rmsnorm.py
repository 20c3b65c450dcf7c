"""Where the library defines RMSNorm."""

from .layernorm import RMSNorm

__all__ = ["RMSNorm"]
