"""Attention over given queries, keys and values."""

from interpose.standins.surface import missing_names

from .dot_product_attention import DotProductAttention

__all__ = ["DotProductAttention"]
__getattr__ = missing_names(__name__)
