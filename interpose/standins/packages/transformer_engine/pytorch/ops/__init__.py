"""Operations that can be fused: the activations. Chains (`Sequential`) are not covered."""

from __future__ import annotations

from typing import Any

import torch

from interpose.standins import activation
from interpose.standins.surface import missing_names, refused_class


class _Activation(torch.nn.Module):
    gated = False

    def __init__(self, *, cache_quantized_input: bool = False, **_: Any) -> None:
        super().__init__()
        self.cache_quantized_input = cache_quantized_input

    def forward(self, data: Any, **_: Any) -> Any:
        """One kernel."""
        return activation.Activation.apply(data, self.gated)


class GELU(_Activation):
    """gelu(x)."""


class ReLU(_Activation):
    """relu(x)."""


class SiLU(_Activation):
    """silu(x)."""


class GEGLU(_Activation):
    """gelu(a) * b."""

    gated = True


class ReGLU(_Activation):
    """relu(a) * b."""

    gated = True


class SwiGLU(_Activation):
    """silu(a) * b."""

    gated = True


Sequential = refused_class(__name__, "Sequential")
FusibleOperation = refused_class(__name__, "FusibleOperation")

__getattr__ = missing_names(__name__)
