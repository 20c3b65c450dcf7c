"""Stand-in of xformers.ops."""

from typing import Any

import torch
import torch.nn.functional as F

from interpose.standins.surface import missing_names

from . import fmha
from .fmha import (
    AttentionBias,
    LowerTriangularMask,
    memory_efficient_attention,
    memory_efficient_attention_forward,
    memory_efficient_attention_forward_requires_grad,
)


def unbind(x: Any, dim: int) -> tuple[Any, ...]:
    """Views along a dimension, whose gradients are stacked without a copy where they lie side by side."""
    return torch.unbind(x, dim)


class SwiGLU(torch.nn.Module):
    """w3(silu(w1 x) * w2 x), with w1 and w2 in one product."""

    def __init__(
        self, in_features: int, hidden_features: int, out_features: int | None = None, bias: bool = True, *,
        _pack_weights: bool = True,
    ) -> None:  # fmt: skip
        super().__init__()
        out_features = out_features or in_features
        hidden_features = hidden_features or in_features
        self.hidden_features = hidden_features
        if not _pack_weights:
            self.w12 = None
            self.w1 = torch.nn.Linear(in_features, hidden_features, bias=bias)
            self.w2 = torch.nn.Linear(in_features, hidden_features, bias=bias)
        else:
            self.w12 = torch.nn.Linear(in_features, 2 * hidden_features, bias=bias)
        self.w3 = torch.nn.Linear(hidden_features, out_features, bias=bias)
        self.op = None

    def forward(self, x: Any) -> Any:
        """The output."""
        if self.w12 is not None:
            first, second = self.w12(x).chunk(2, dim=-1)
        else:
            first, second = self.w1(x), self.w2(x)
        return self.w3(F.silu(first) * second)


__all__ = [
    "AttentionBias",
    "LowerTriangularMask",
    "SwiGLU",
    "fmha",
    "memory_efficient_attention",
    "memory_efficient_attention_forward",
    "memory_efficient_attention_forward_requires_grad",
    "unbind",
]
__getattr__ = missing_names(__name__)
