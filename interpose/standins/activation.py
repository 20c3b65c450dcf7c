"""Activation functions as one kernel each way; saves its input."""

from __future__ import annotations

from typing import Any

import torch

from interpose.standins import operators

GATED = frozenset({"geglu", "reglu", "swiglu", "qgeglu", "sreglu", "glu"})
PLAIN = frozenset({"gelu", "relu", "silu", "qgelu", "srelu"})


class Activation(torch.autograd.Function):
    """`gated` halves the last dimension."""

    @staticmethod
    def forward(ctx: Any, data: Any, gated: bool) -> Any:
        """The activation."""
        ctx.save_for_backward(data)
        width = data.shape[-1] // 2 if gated else data.shape[-1]
        out = torch.empty((*data.shape[:-1], width), dtype=data.dtype, device=data.device)
        operators.fused_activation_kernel([data], [out])
        return out

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        """The gradient of its input."""
        (data,) = ctx.saved_tensors
        out = torch.empty_like(data)
        operators.fused_activation_kernel([data, grad], [out])
        return out, None
