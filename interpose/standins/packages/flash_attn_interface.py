"""Stand-in of FlashAttention-3 (the `hopper` package)."""

from typing import Any

from interpose.standins import flash_attention
from interpose.standins.surface import missing_names, not_covered

__version__ = "3.0.0"


def _result(found: Any, with_lse: bool) -> Any:
    return (found[0], found[1]) if with_lse else found


def flash_attn_func(
    q: Any, k: Any, v: Any, softmax_scale: float | None = None, causal: bool = False, qv: Any = None,
    q_descale: Any = None, k_descale: Any = None, v_descale: Any = None,
    window_size: tuple[int, int] = (-1, -1), attention_chunk: int = 0, softcap: float = 0.0,
    num_splits: int = 1, pack_gqa: Any = None, deterministic: bool = False, sm_margin: int = 0,
    return_attn_probs: bool = False,
) -> Any:  # fmt: skip
    """Attention over [batch, length, heads, head size]."""
    if q_descale is not None or qv is not None:
        raise not_covered(__name__, "flash_attn_func", why="(fp8 inputs, qv)")
    found = flash_attention.attention(
        q, k, v, softmax_scale=softmax_scale, causal=causal, window_size=window_size,
        return_attn_probs=return_attn_probs,
    )  # fmt: skip
    return _result(found, return_attn_probs)


def flash_attn_qkvpacked_func(
    qkv: Any, softmax_scale: float | None = None, causal: bool = False, q_descale: Any = None,
    k_descale: Any = None, v_descale: Any = None, window_size: tuple[int, int] = (-1, -1),
    attention_chunk: int = 0, softcap: float = 0.0, deterministic: bool = False,
    num_heads_q: int | None = None, sm_margin: int = 0, return_attn_probs: bool = False,
) -> Any:  # fmt: skip
    """Attention over [batch, length, 3, heads, head size]."""
    if q_descale is not None or num_heads_q is not None:
        raise not_covered(__name__, "flash_attn_qkvpacked_func", why="(fp8 inputs, num_heads_q)")
    found = flash_attention.attention(
        qkv, softmax_scale=softmax_scale, causal=causal, window_size=window_size,
        return_attn_probs=return_attn_probs,
    )  # fmt: skip
    return _result(found, return_attn_probs)


def flash_attn_varlen_func(
    q: Any, k: Any, v: Any, cu_seqlens_q: Any, cu_seqlens_k: Any, max_seqlen_q: int, max_seqlen_k: int,
    seqused_q: Any = None, seqused_k: Any = None, softmax_scale: float | None = None, causal: bool = False,
    qv: Any = None, q_descale: Any = None, k_descale: Any = None, v_descale: Any = None,
    window_size: tuple[int, int] = (-1, -1), attention_chunk: int = 0, softcap: float = 0.0,
    num_splits: int = 1, pack_gqa: Any = None, deterministic: bool = False, sm_margin: int = 0,
    return_attn_probs: bool = False,
) -> Any:  # fmt: skip
    """Attention over sequences packed into [tokens, heads, head size]."""
    if q_descale is not None or qv is not None:
        raise not_covered(__name__, "flash_attn_varlen_func", why="(fp8 inputs, qv)")
    found = flash_attention.attention(
        q, k, v, cu_q=cu_seqlens_q, cu_k=cu_seqlens_k, max_q=max_seqlen_q, max_k=max_seqlen_k,
        softmax_scale=softmax_scale, causal=causal, window_size=window_size,
        return_attn_probs=return_attn_probs,
    )  # fmt: skip
    return _result(found, return_attn_probs)


def flash_attn_with_kvcache(*arguments: Any, **named: Any) -> Any:
    """Decoding with a cache of keys and values: inference, which phantom does not simulate."""
    raise not_covered(__name__, "flash_attn_with_kvcache", why="(decoding with a cache)")


__getattr__ = missing_names(__name__)
