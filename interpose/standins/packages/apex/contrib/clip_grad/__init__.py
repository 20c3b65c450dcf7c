"""Clipping by the norm of all gradients with multi-tensor kernels."""

from typing import Any

import torch

from interpose.standins import operators, optimizers
from interpose.standins.surface import missing_names


def clip_grad_norm_(
    parameters: Any, max_norm: float, norm_type: float = 2.0, error_if_nonfinite: bool = False
) -> Any:
    """Scales the gradients in place; returns their norm."""
    if isinstance(parameters, torch.Tensor):
        parameters = [parameters]
    gradients = [p.grad for p in parameters if p.grad is not None]
    if not gradients:
        return torch.tensor(0.0)
    total, _ = optimizers.l2norm(gradients)
    operators.multi_tensor_scale_kernel(gradients, gradients)
    return total


__getattr__ = missing_names(__name__)
