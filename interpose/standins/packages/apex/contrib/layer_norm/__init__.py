"""Persistent layer norm."""

from interpose.standins.surface import missing_names

from .layer_norm import FastLayerNorm

__all__ = ["FastLayerNorm"]
__getattr__ = missing_names(__name__)
