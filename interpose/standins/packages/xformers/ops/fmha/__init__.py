"""Stand-in of xformers.ops.fmha: flash attention where xFormers takes it, else its CUTLASS kernel.

xFormers tries flash attention first (half precision, head size at most 256, no dense bias), then CUTLASS,
which is PyTorch's memory-efficient attention (xformers/ops/fmha/dispatch.py).
"""

from typing import Any

import torch

from interpose.standins import efficient_attention, flash_attention
from interpose.standins.surface import missing_names, not_covered

from . import attn_bias
from .attn_bias import AttentionBias, BlockDiagonalMask, LowerTriangularMask


class _Operator:
    """Names a kernel in the argument `op`."""

    NAME = ""


def _operator(name: str) -> Any:
    return type(name, (_Operator,), {"NAME": name})


class flash:
    """Kernels of flash-attn."""

    FwOp, BwOp = _operator("flshattF"), _operator("flshattB")


class cutlass:
    """Kernels of CUTLASS."""

    FwOp, BwOp = _operator("cutlassF"), _operator("cutlassB")


MemoryEfficientAttentionCutlassOp = (cutlass.FwOp, cutlass.BwOp)
MemoryEfficientAttentionFlashAttentionOp = (flash.FwOp, flash.BwOp)
MemoryEfficientAttentionOp = MemoryEfficientAttentionCutlassOp


def memory_efficient_attention(
    query: Any, key: Any, value: Any, attn_bias: Any = None, p: float = 0.0, scale: float | None = None, *,
    op: Any = None, output_dtype: Any = None,
) -> Any:  # fmt: skip
    """Attention over [batch, length, heads, head size] (or without heads, or with groups of heads)."""
    if output_dtype not in (None, query.dtype):
        raise not_covered(__name__, "memory_efficient_attention", why="(output_dtype)")
    q, k, v, shape = _four_dimensions(query, key, value)
    dense = isinstance(attn_bias, torch.Tensor)
    half = q.dtype in (torch.float16, torch.bfloat16)
    wants_cutlass = op is not None and op[0] is cutlass.FwOp
    if half and not dense and q.shape[-1] <= 256 and not wants_cutlass:
        out = _flash(q, k, v, attn_bias, p, scale)
    else:
        out = _cutlass(q, k, v, attn_bias if dense else None, attn_bias if not dense else None, p, scale)
    return out.reshape(shape)


def memory_efficient_attention_forward(*arguments: Any, **named: Any) -> Any:
    """Forward only."""
    with torch.no_grad():
        return memory_efficient_attention(*arguments, **named)


def memory_efficient_attention_forward_requires_grad(*arguments: Any, **named: Any) -> Any:
    """Forward with log-sum-exp, for custom backward passes."""
    raise not_covered(__name__, "memory_efficient_attention_forward_requires_grad")


def _four_dimensions(query: Any, key: Any, value: Any) -> tuple[Any, Any, Any, Any]:
    shape = (*query.shape[:-1], value.shape[-1])
    if query.ndim == 3:
        return query.unsqueeze(2), key.unsqueeze(2), value.unsqueeze(2), shape
    if query.ndim == 5:  # [batch, length, groups, heads of a group, head size], key broadcast over a group
        return query.flatten(2, 3), key[:, :, :, 0], value[:, :, :, 0], shape
    return query, key, value, shape


def _flash(q: Any, k: Any, v: Any, bias: Any, dropout: float, scale: float | None) -> Any:
    causal, window = attn_bias.causal_and_window(bias)
    if isinstance(bias, BlockDiagonalMask):
        starts_q, starts_k = bias.q_seqinfo.on(q.device), bias.k_seqinfo.on(q.device)
        out = flash_attention.attention(
            q.flatten(0, 1), k.flatten(0, 1), v.flatten(0, 1), cu_q=starts_q, cu_k=starts_k,
            max_q=bias.q_seqinfo.max_seqlen, max_k=bias.k_seqinfo.max_seqlen, dropout_p=dropout,
            softmax_scale=scale, causal=causal, window_size=window,
        )  # fmt: skip
        return out.unflatten(0, q.shape[:2])
    return flash_attention.attention(
        q, k, v, dropout_p=dropout, softmax_scale=scale, causal=causal, window_size=window
    )


def _cutlass(q: Any, k: Any, v: Any, bias: Any, mask: Any, dropout: float, scale: float | None) -> Any:
    causal, window = attn_bias.causal_and_window(mask)
    if window != (-1, -1):
        raise not_covered(__name__, "memory_efficient_attention", why="(a window in fp32)")
    starts: tuple[Any, Any, int, int] | None = None
    if isinstance(mask, BlockDiagonalMask):
        one, two = mask.q_seqinfo, mask.k_seqinfo
        starts = (one.on(q.device), two.on(q.device), one.max_seqlen, two.max_seqlen)
    return efficient_attention.attention(
        q, k, v, bias, starts=starts, causal=causal, dropout=dropout, scale=scale
    )


__all__ = [
    "AttentionBias",
    "BlockDiagonalMask",
    "LowerTriangularMask",
    "MemoryEfficientAttentionCutlassOp",
    "MemoryEfficientAttentionFlashAttentionOp",
    "MemoryEfficientAttentionOp",
    "attn_bias",
    "cutlass",
    "flash",
    "memory_efficient_attention",
]
__getattr__ = missing_names(__name__)
