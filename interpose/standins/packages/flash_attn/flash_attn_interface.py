"""Stand-in of flash_attn.flash_attn_interface."""

from typing import Any

from interpose.standins import flash_attention
from interpose.standins.surface import missing_names

Window = tuple[int, int]


def flash_attn_func(
    q: Any, k: Any, v: Any, dropout_p: float = 0.0, softmax_scale: float | None = None,
    causal: bool = False, window_size: Window = (-1, -1), softcap: float = 0.0, alibi_slopes: Any = None,
    deterministic: bool = False, return_attn_probs: bool = False,
) -> Any:  # fmt: skip
    """Attention over [batch, length, heads, head size]; key and value may have fewer heads."""
    return flash_attention.attention(
        q, k, v, dropout_p=dropout_p, softmax_scale=softmax_scale, causal=causal, window_size=window_size,
        alibi_slopes=alibi_slopes, return_attn_probs=return_attn_probs,
    )  # fmt: skip


def flash_attn_qkvpacked_func(
    qkv: Any, dropout_p: float = 0.0, softmax_scale: float | None = None, causal: bool = False,
    window_size: Window = (-1, -1), softcap: float = 0.0, alibi_slopes: Any = None,
    deterministic: bool = False, return_attn_probs: bool = False,
) -> Any:  # fmt: skip
    """Attention over [batch, length, 3, heads, head size]."""
    return flash_attention.attention(
        qkv, dropout_p=dropout_p, softmax_scale=softmax_scale, causal=causal, window_size=window_size,
        alibi_slopes=alibi_slopes, return_attn_probs=return_attn_probs,
    )  # fmt: skip


def flash_attn_kvpacked_func(
    q: Any, kv: Any, dropout_p: float = 0.0, softmax_scale: float | None = None, causal: bool = False,
    window_size: Window = (-1, -1), softcap: float = 0.0, alibi_slopes: Any = None,
    deterministic: bool = False, return_attn_probs: bool = False,
) -> Any:  # fmt: skip
    """Attention over queries and [batch, length, 2, heads, head size]."""
    return flash_attention.attention(
        q, kv, dropout_p=dropout_p, softmax_scale=softmax_scale, causal=causal, window_size=window_size,
        alibi_slopes=alibi_slopes, return_attn_probs=return_attn_probs,
    )  # fmt: skip


def flash_attn_varlen_func(
    q: Any, k: Any, v: Any, cu_seqlens_q: Any, cu_seqlens_k: Any, max_seqlen_q: int, max_seqlen_k: int,
    dropout_p: float = 0.0, softmax_scale: float | None = None, causal: bool = False,
    window_size: Window = (-1, -1), softcap: float = 0.0, alibi_slopes: Any = None,
    deterministic: bool = False, return_attn_probs: bool = False, block_table: Any = None,
) -> Any:  # fmt: skip
    """Attention over sequences packed into [tokens, heads, head size]."""
    if block_table is not None:
        raise _not_covered("flash_attn_varlen_func", "(block_table)")
    return flash_attention.attention(
        q, k, v, cu_q=cu_seqlens_q, cu_k=cu_seqlens_k, max_q=max_seqlen_q, max_k=max_seqlen_k,
        dropout_p=dropout_p, softmax_scale=softmax_scale, causal=causal, window_size=window_size,
        alibi_slopes=alibi_slopes, return_attn_probs=return_attn_probs,
    )  # fmt: skip


def flash_attn_varlen_qkvpacked_func(
    qkv: Any, cu_seqlens: Any, max_seqlen: int, dropout_p: float = 0.0, softmax_scale: float | None = None,
    causal: bool = False, window_size: Window = (-1, -1), softcap: float = 0.0, alibi_slopes: Any = None,
    deterministic: bool = False, return_attn_probs: bool = False,
) -> Any:  # fmt: skip
    """Attention over [tokens, 3, heads, head size]."""
    return flash_attention.attention(
        qkv, cu_q=cu_seqlens, cu_k=cu_seqlens, max_q=max_seqlen, max_k=max_seqlen, dropout_p=dropout_p,
        softmax_scale=softmax_scale, causal=causal, window_size=window_size, alibi_slopes=alibi_slopes,
        return_attn_probs=return_attn_probs,
    )  # fmt: skip


def flash_attn_varlen_kvpacked_func(
    q: Any, kv: Any, cu_seqlens_q: Any, cu_seqlens_k: Any, max_seqlen_q: int, max_seqlen_k: int,
    dropout_p: float = 0.0, softmax_scale: float | None = None, causal: bool = False,
    window_size: Window = (-1, -1), softcap: float = 0.0, alibi_slopes: Any = None,
    deterministic: bool = False, return_attn_probs: bool = False,
) -> Any:  # fmt: skip
    """Attention over queries and [tokens, 2, heads, head size]."""
    return flash_attention.attention(
        q, kv, cu_q=cu_seqlens_q, cu_k=cu_seqlens_k, max_q=max_seqlen_q, max_k=max_seqlen_k,
        dropout_p=dropout_p, softmax_scale=softmax_scale, causal=causal, window_size=window_size,
        alibi_slopes=alibi_slopes, return_attn_probs=return_attn_probs,
    )  # fmt: skip


def flash_attn_with_kvcache(*arguments: Any, **named: Any) -> Any:
    """Decoding with a cache of keys and values: inference, which phantom does not simulate."""
    raise _not_covered("flash_attn_with_kvcache", "(decoding with a cache)")


def _flash_attn_forward(
    q: Any, k: Any, v: Any, dropout_p: float, softmax_scale: float, causal: bool,
    window_size_left: int = -1, window_size_right: int = -1, softcap: float = 0.0, alibi_slopes: Any = None,
    return_softmax: bool = False,
) -> tuple[Any, Any, Any, Any]:  # fmt: skip
    """The kernel without autograd, as ring attention calls it."""
    call = flash_attention.FlashCall(
        max_q=q.shape[1], max_k=k.shape[1], dropout=dropout_p, scale=softmax_scale, causal=causal,
        window=(window_size_left, window_size_right),
    )  # fmt: skip
    out, lse, state, _ = flash_attention.forward(q, k, v, None, None, call, alibi_slopes)
    return out, lse, None, state


def _flash_attn_backward(
    dout: Any, q: Any, k: Any, v: Any, out: Any, softmax_lse: Any, dq: Any, dk: Any, dv: Any,
    dropout_p: float, softmax_scale: float, causal: bool, window_size_left: int = -1,
    window_size_right: int = -1, softcap: float = 0.0, alibi_slopes: Any = None, deterministic: bool = False,
    rng_state: Any = None,
) -> Any:  # fmt: skip
    """The kernel without autograd; the caller's dq, dk and dv are where the results belong."""
    import torch

    call = flash_attention.FlashCall(
        max_q=q.shape[1], max_k=k.shape[1], dropout=dropout_p, scale=softmax_scale, causal=causal,
        window=(window_size_left, window_size_right),
    )  # fmt: skip
    state = rng_state if rng_state is not None else torch.empty(2, dtype=torch.int64, device=q.device)
    flash_attention.backward(dout, q, k, v, out, softmax_lse, state, state, None, None, call)
    return torch.empty_like(softmax_lse)


def _not_covered(name: str, why: str) -> Exception:
    from interpose.standins.surface import not_covered

    return not_covered(__name__, name, why=why)


__getattr__ = missing_names(__name__)
