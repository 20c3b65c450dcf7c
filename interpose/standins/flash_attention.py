"""flash-attn's functions on PyTorch's own flash attention operators, with the library's saved tensors.

Tensors are [batch, length, heads, head size], or [tokens, heads, head size] with offsets. The source followed
is flash_attn/flash_attn_interface.py of 2.8: what is saved for backward, how packed gradients are laid out,
and the padding of head sizes to a multiple of 8.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

aten = torch.ops.aten


@dataclass(frozen=True, kw_only=True)
class FlashCall:
    """What does not change between forward and backward."""

    max_q: int
    max_k: int
    dropout: float = 0.0
    scale: float | None = None
    causal: bool = False
    window: tuple[int, int] = (-1, -1)


def forward(
    q: Any, k: Any, v: Any, cu_q: Any, cu_k: Any, call: FlashCall, alibi: Any = None
) -> tuple[Any, ...]:
    """Returns output, log-sum-exp and the random state (two tensors)."""
    left, right = call.window
    out, lse, state, unused, _ = aten._flash_attention_forward(
        q, k, v, cu_q, cu_k, call.max_q, call.max_k, call.dropout, call.causal, False, scale=call.scale,
        window_size_left=left if left >= 0 else None, window_size_right=right if right >= 0 else None,
        alibi_slopes=alibi,
    )  # fmt: skip
    return out, lse, state, unused


def backward(
    grad: Any, q: Any, k: Any, v: Any, out: Any, lse: Any, state: Any, unused: Any, cu_q: Any, cu_k: Any,
    call: FlashCall,
) -> tuple[Any, Any, Any]:  # fmt: skip
    """Returns the gradients of query, key and value."""
    left, right = call.window
    return aten._flash_attention_backward(  # type: ignore[no-any-return]
        grad, q, k, v, out, lse, cu_q, cu_k, call.max_q, call.max_k, call.dropout, call.causal, state, unused,
        scale=call.scale, window_size_left=left if left >= 0 else None,
        window_size_right=right if right >= 0 else None,
    )  # fmt: skip


class FlashFunction(torch.autograd.Function):
    """`packed` holds query, key and value as given: three tensors, query and packed key-value, or one."""

    @staticmethod
    def forward(ctx: Any, cu_q: Any, cu_k: Any, alibi: Any, call: FlashCall, *packed: Any) -> Any:
        """Output, padded as the kernel saw it, and log-sum-exp."""
        q, k, v = _parts(packed)
        out, lse, state, unused = forward(q, k, v, cu_q, cu_k, call, alibi)
        ctx.call, ctx.count = call, len(packed)
        ctx.save_for_backward(*packed, out, lse, state, unused, cu_q, cu_k)
        ctx.mark_non_differentiable(lse)
        return out, lse

    @staticmethod
    def backward(ctx: Any, grad: Any, _: Any) -> Any:
        """Gradients, packed as the arguments were."""
        saved = ctx.saved_tensors
        packed, (out, lse, state, unused, cu_q, cu_k) = saved[: ctx.count], saved[ctx.count :]
        q, k, v = _parts(packed)
        grads = backward(grad.contiguous(), q, k, v, out, lse, state, unused, cu_q, cu_k, ctx.call)
        if ctx.count == 3:
            return (None, None, None, None, *grads)
        # The library's kernel writes into slices of one packed tensor; the operator's own results go first.
        first = grads[0] if ctx.count == 2 else None
        del grads
        made = torch.empty_like(packed[-1])
        return (None, None, None, None, made) if first is None else (None, None, None, None, first, made)


def _parts(packed: tuple[Any, ...]) -> tuple[Any, Any, Any]:
    """Query, key and value of arguments whose third dimension from the end counts what is packed."""
    if len(packed) == 3:
        return packed
    if len(packed) == 2:
        q, kv = packed
        return q, kv.select(-3, 0), kv.select(-3, 1)
    (qkv,) = packed
    return qkv.select(-3, 0), qkv.select(-3, 1), qkv.select(-3, 2)


def attention(
    *packed: Any, cu_q: Any = None, cu_k: Any = None, max_q: int | None = None, max_k: int | None = None,
    dropout_p: float = 0.0, softmax_scale: float | None = None, causal: bool = False,
    window_size: tuple[int, int] = (-1, -1), alibi_slopes: Any = None, return_attn_probs: bool = False,
) -> Any:  # fmt: skip
    """Attention of query, key and value (or packed ones); with `return_attn_probs` also log-sum-exp and None.

    Raises RuntimeError for data types and head sizes that the library refuses.
    """
    q = packed[0]
    head_size = q.shape[-1]
    if q.dtype not in (torch.float16, torch.bfloat16):
        raise RuntimeError("FlashAttention only support fp16 and bf16 data type")
    if head_size > 256:
        raise RuntimeError("FlashAttention forward only supports head dimension at most 256")
    scale = softmax_scale if softmax_scale is not None else head_size**-0.5
    if head_size % 8:
        packed = tuple(torch.nn.functional.pad(t, (0, 8 - head_size % 8)) for t in packed)
    query, key, _ = _parts(packed)
    call = FlashCall(
        max_q=int(max_q) if max_q is not None else query.shape[1],
        max_k=int(max_k) if max_k is not None else key.shape[1],
        dropout=dropout_p,
        scale=scale,
        causal=causal,
        window=(int(window_size[0]), int(window_size[1])),
    )
    out, lse = FlashFunction.apply(cu_q, cu_k, alibi_slopes, call, *packed)
    out = out[..., :head_size] if head_size % 8 else out
    return (out, lse, None) if return_attn_probs else out
