"""Layer and RMS norm with the arguments and the saved tensors of the fused kernels of Apex and Transformer
Engine, made of PyTorch's own fused operators."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

aten = torch.ops.aten


class LayerNormFunction(torch.autograd.Function):
    """Saves input (or output, `memory_efficient`), mean and reciprocal deviation (fp32 per row), as the fused
    kernels do."""

    @staticmethod
    def forward(
        ctx: Any, input: Any, weight: Any, bias: Any, normalized_shape: Sequence[int], eps: float,
        memory_efficient: bool = False,
    ) -> Any:  # fmt: skip
        """Returns the normalized input."""
        weight, bias = _like(weight, input), _like(bias, input)
        out, mean, rstd = aten.native_layer_norm(input, list(normalized_shape), weight, bias, eps)
        ctx.save_for_backward(out if memory_efficient else input, weight, bias, mean, rstd)
        ctx.shape = list(normalized_shape)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        """Gradients of input, weight and bias."""
        data, weight, bias, mean, rstd = ctx.saved_tensors
        mask = [ctx.needs_input_grad[0], weight is not None, bias is not None]
        grads = aten.native_layer_norm_backward(
            grad.contiguous(), data, ctx.shape, mean, rstd, weight, bias, mask
        )
        return (*grads, None, None, None)


class RmsNormFunction(torch.autograd.Function):
    """Saves input (or output, `memory_efficient`) and reciprocal root mean square (fp32 per row)."""

    @staticmethod
    def forward(
        ctx: Any, input: Any, weight: Any, normalized_shape: Sequence[int], eps: float,
        memory_efficient: bool = False,
    ) -> Any:  # fmt: skip
        """Returns the normalized input."""
        weight = _like(weight, input)
        out, rstd = aten._fused_rms_norm(input, list(normalized_shape), weight, eps)
        ctx.save_for_backward(out if memory_efficient else input, weight, rstd)
        ctx.shape = list(normalized_shape)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        """Gradients of input and weight."""
        data, weight, rstd = ctx.saved_tensors
        mask = [ctx.needs_input_grad[0], weight is not None]
        grads = aten._fused_rms_norm_backward(grad.contiguous(), data, ctx.shape, rstd, weight, mask)
        return (*grads, None, None, None)


def layer_norm(
    data: Any, weight: Any, bias: Any, shape: Sequence[int], eps: float, memory_efficient: bool = False
) -> Any:
    """Normalizes the last dimensions. Weight and bias take the input's data type, as inside the kernels."""
    return LayerNormFunction.apply(data, weight, bias, shape, eps, memory_efficient)


def rms_norm(data: Any, weight: Any, shape: Sequence[int], eps: float, memory_efficient: bool = False) -> Any:
    """Divides by the root mean square of the last dimensions."""
    return RmsNormFunction.apply(data, weight, shape, eps, memory_efficient)


def _like(parameter: Any, data: Any) -> Any:
    return parameter if parameter is None or parameter.dtype == data.dtype else parameter.to(data.dtype)
