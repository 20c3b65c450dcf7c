"""Rotary embedding as flash-attn's Triton kernel applies it: one pass over the tensor each way."""

from __future__ import annotations

from typing import Any

import torch

from interpose.standins import operators


class RotaryFunction(torch.autograd.Function):
    """Saves nothing of the tensor's size: backward rotates the gradient the other way."""

    @staticmethod
    def forward(ctx: Any, data: Any, cos: Any, sin: Any, inplace: bool) -> Any:
        """The rotated tensor."""
        ctx.save_for_backward(cos, sin)
        ctx.inplace = inplace
        out = data if inplace else torch.empty_like(data)
        operators.fused_rope_kernel([data, cos, sin], [out])
        if inplace:
            ctx.mark_dirty(data)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        """Gradient of the tensor."""
        cos, sin = ctx.saved_tensors
        out = grad if ctx.inplace else torch.empty_like(grad)
        operators.fused_rope_kernel([grad, cos, sin], [out])
        return out, None, None, None


def apply(data: Any, cos: Any, sin: Any, *, inplace: bool = False) -> Any:
    """Rotates [batch, length, heads, head size] (or packed tokens) by tables of angles."""
    return RotaryFunction.apply(data, cos, sin, inplace)
