"""Fused attention of libraries, on PyTorch's own fused operators, forward and backward apart.

Tensors are [batch, heads, length, head size] views in any memory order; outputs follow the query's order, as
the libraries' do, so nothing is copied.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import torch

aten = torch.ops.aten


@dataclass(frozen=True, kw_only=True)
class AttentionCall:
    """What does not change between forward and backward. `implementation`: cudnn, flash or math."""

    implementation: str
    causal: bool = False
    dropout: float = 0.0
    scale: float | None = None
    window: tuple[int, int] | None = None


def choose(*, bias: bool = False, window: bool = False, dtype: torch.dtype, head_dim: int) -> str:
    """The kernel that Transformer Engine takes: cuDNN's from Hopper on, flash attention before it, unfused
    for fp32 and where both are switched off (NVTE_FUSED_ATTN, NVTE_FLASH_ATTN).
    """
    fused = os.environ.get("NVTE_FUSED_ATTN", "1") == "1"
    flash = os.environ.get("NVTE_FLASH_ATTN", "1") == "1" and not bias
    if dtype not in (torch.float16, torch.bfloat16) or head_dim > 256 or not (fused or flash):
        return "math"
    hopper = torch.cuda.get_device_capability()[0] >= 9
    if window:
        return "flash"
    if fused and (hopper or not flash):
        return "cudnn"
    return "flash" if flash else "cudnn"


def forward(q: Any, k: Any, v: Any, call: AttentionCall, bias: Any = None) -> tuple[Any, tuple[Any, ...]]:
    """Returns the output and what backward wants besides it: log-sum-exp first, then random state."""
    if call.implementation == "cudnn":
        out, lse, cum_q, cum_k, max_q, max_k, seed, offset, _ = aten._scaled_dot_product_cudnn_attention(
            q, k, v, bias, True, call.dropout, call.causal, False, scale=call.scale
        )
        return out, (lse, cum_q, cum_k, max_q, max_k, seed, offset)
    if call.window is not None:
        left, right = call.window
        out, lse, state, unused, _ = aten._flash_attention_forward(
            q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), None, None, q.shape[2], k.shape[2],
            call.dropout, call.causal, False, scale=call.scale, window_size_left=left,
            window_size_right=right,
        )  # fmt: skip
        return out.transpose(1, 2), (lse, None, None, q.shape[2], k.shape[2], state, unused)
    out, lse, cum_q, cum_k, max_q, max_k, seed, offset, _ = aten._scaled_dot_product_flash_attention(
        q, k, v, call.dropout, call.causal, False, scale=call.scale
    )
    return out, (lse, cum_q, cum_k, max_q, max_k, seed, offset)


def backward(
    grad: Any, q: Any, k: Any, v: Any, out: Any, rest: tuple[Any, ...], call: AttentionCall, bias: Any = None
) -> tuple[Any, Any, Any]:
    """Returns the gradients of query, key and value."""
    lse, cum_q, cum_k, max_q, max_k, seed, offset = rest
    if call.implementation == "cudnn":
        grads = aten._scaled_dot_product_cudnn_attention_backward(
            grad, q, k, v, out, lse, seed, offset, bias, cum_q, cum_k, max_q, max_k, call.dropout,
            call.causal, scale=call.scale,
        )  # fmt: skip
    elif call.window is not None:
        left, right = call.window
        turned = [t.transpose(1, 2) for t in (grad, q, k, v, out)]
        grads = aten._flash_attention_backward(
            *turned, lse, cum_q, cum_k, max_q, max_k, call.dropout, call.causal, seed, offset,
            scale=call.scale, window_size_left=left, window_size_right=right,
        )  # fmt: skip
        return tuple(g.transpose(1, 2) for g in grads)  # type: ignore[return-value]
    else:
        grads = aten._scaled_dot_product_flash_attention_backward(
            grad, q, k, v, out, lse, cum_q, cum_k, max_q, max_k, call.dropout, call.causal, seed, offset,
            scale=call.scale,
        )  # fmt: skip
    return grads


class FusedAttention(torch.autograd.Function):
    """Saves query, key, value, output, the rows' log-sum-exp and the random state."""

    @staticmethod
    def forward(ctx: Any, q: Any, k: Any, v: Any, bias: Any, call: AttentionCall) -> Any:
        """The output."""
        out, rest = forward(q, k, v, call, bias)
        tensors = [t for t in rest if isinstance(t, torch.Tensor)]
        ctx.places = [isinstance(t, torch.Tensor) for t in rest]
        ctx.plain = [None if isinstance(t, torch.Tensor) else t for t in rest]
        ctx.call = call
        ctx.save_for_backward(q, k, v, out, bias, *tensors)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        """Gradients of query, key and value."""
        q, k, v, out, bias, *tensors = ctx.saved_tensors
        rest = tuple(
            tensors.pop(0) if is_tensor else plain for is_tensor, plain in zip(ctx.places, ctx.plain)
        )
        return (*backward(grad, q, k, v, out, rest, ctx.call, bias), None, None)


class PackedAttention(torch.autograd.Function):
    """Sequences of several lengths packed into one dimension: [tokens, heads, head size]."""

    @staticmethod
    def forward(
        ctx: Any, q: Any, k: Any, v: Any, offsets_q: Any, offsets_k: Any, max_q: int, max_k: int,
        call: AttentionCall,
    ) -> Any:  # fmt: skip
        """The output."""
        out, lse, state, unused, _ = aten._flash_attention_forward(
            q, k, v, offsets_q, offsets_k, max_q, max_k, call.dropout, call.causal, False, scale=call.scale
        )
        ctx.save_for_backward(q, k, v, out, lse, state, unused, offsets_q, offsets_k)
        ctx.rest = (max_q, max_k, call)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        """Gradients of query, key and value."""
        q, k, v, out, lse, state, unused, offsets_q, offsets_k = ctx.saved_tensors
        max_q, max_k, call = ctx.rest
        grads = aten._flash_attention_backward(
            grad, q, k, v, out, lse, offsets_q, offsets_k, max_q, max_k, call.dropout, call.causal, state,
            unused, scale=call.scale,
        )  # fmt: skip
        return (*grads, None, None, None, None, None)


def unfused(q: Any, k: Any, v: Any, call: AttentionCall, bias: Any = None, mask: Any = None) -> Any:
    """Two batched products with scale, mask, softmax and dropout between them."""
    if k.shape[1] != q.shape[1]:
        repeat = q.shape[1] // k.shape[1]
        k, v = k.repeat_interleave(repeat, dim=1), v.repeat_interleave(repeat, dim=1)
    scale = call.scale if call.scale is not None else q.shape[-1] ** -0.5
    scores = torch.matmul(q * scale, k.transpose(-1, -2))
    if bias is not None:
        scores = scores + bias
    if mask is not None and mask.dtype == torch.bool:
        scores = scores.masked_fill(mask, -10000.0)
    probabilities = _ScaledSoftmax.apply(scores)
    if call.dropout:
        probabilities = torch.nn.functional.dropout(probabilities, call.dropout)
    return torch.matmul(probabilities, v)


class _ScaledSoftmax(torch.autograd.Function):
    """The fused softmax of softmax.py under autograd."""

    @staticmethod
    def forward(ctx: Any, scores: Any) -> Any:
        from interpose.standins import softmax

        out = softmax.forward(scores)
        ctx.save_for_backward(out)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        from interpose.standins import softmax

        (out,) = ctx.saved_tensors
        return softmax.backward(grad, out)
