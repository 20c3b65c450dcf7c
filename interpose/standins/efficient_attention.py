"""Memory-efficient attention (CUTLASS) on PyTorch's own operators, with what they save."""

from __future__ import annotations

from typing import Any

import torch

aten = torch.ops.aten


class EfficientFunction(torch.autograd.Function):
    """Saves query, key, value, bias, output, log-sum-exp and the random state."""

    @staticmethod
    def forward(
        ctx: Any, q: Any, k: Any, v: Any, bias: Any, starts: Any, causal: bool, dropout: float, scale: Any
    ) -> Any:
        """The output."""
        cu_q, cu_k, max_q, max_k = starts if starts is not None else (None, None, None, None)
        out, lse, seed, offset, longest_q, longest_k = aten._efficient_attention_forward(
            q, k, v, bias, cu_q, cu_k, max_q, max_k, dropout, int(causal), True, scale=scale
        )
        ctx.save_for_backward(q, k, v, bias, out, lse, seed, offset, cu_q, cu_k)
        ctx.rest = (longest_q, longest_k, causal, dropout, scale)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        """Gradients of query, key, value and bias."""
        q, k, v, bias, out, lse, seed, offset, cu_q, cu_k = ctx.saved_tensors
        longest_q, longest_k, causal, dropout, scale = ctx.rest
        wants_bias = bias is not None and ctx.needs_input_grad[3]
        dq, dk, dv, dbias = aten._efficient_attention_backward(
            grad, q, k, v, bias, out, cu_q, cu_k, longest_q, longest_k, lse, dropout, seed, offset,
            int(causal), wants_bias, scale=scale,
        )  # fmt: skip
        return dq, dk, dv, dbias if wants_bias else None, None, None, None, None


def attention(
    q: Any, k: Any, v: Any, bias: Any = None, *, starts: Any = None, causal: bool = False,
    dropout: float = 0.0, scale: float | None = None,
) -> Any:  # fmt: skip
    """Attention over [batch, length, heads, head size]; `starts`: offsets and longest lengths of packed
    sequences of queries and keys."""
    if k.shape[2] != q.shape[2]:
        repeat = q.shape[2] // k.shape[2]
        k, v = k.repeat_interleave(repeat, dim=2), v.repeat_interleave(repeat, dim=2)
    return EfficientFunction.apply(q, k, v, bias, starts, causal, dropout, scale)
