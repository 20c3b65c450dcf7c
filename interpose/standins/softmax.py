"""Fused scale, mask and softmax over attention scores: saves its output only; backward is in place."""

from __future__ import annotations

from typing import Any

import torch

from interpose.standins import operators


def forward(scores: Any, mask: Any = None) -> Any:
    """softmax(scale * scores, masked) in one kernel."""
    out = torch.empty_like(scores)
    operators.scaled_softmax_kernel([scores] if mask is None else [scores, mask], [out])
    return out


def backward(grad: Any, out: Any) -> Any:
    """The gradient of the scores, written over that of the output."""
    grad = grad.contiguous()
    operators.scaled_softmax_backward_kernel([grad, out], [grad])
    return grad
