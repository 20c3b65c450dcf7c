"""Attention."""

from interpose.standins.surface import missing_names

from . import rope
from .dot_product_attention import DotProductAttention
from .multi_head_attention import MultiheadAttention
from .rope import RotaryPositionEmbedding, apply_rotary_pos_emb
from .split import SplitAlongDim
from .split import SplitAlongDim as _SplitAlongDim

__all__ = [
    "DotProductAttention",
    "MultiheadAttention",
    "RotaryPositionEmbedding",
    "SplitAlongDim",
    "_SplitAlongDim",
    "apply_rotary_pos_emb",
    "rope",
]
__getattr__ = missing_names(__name__)
