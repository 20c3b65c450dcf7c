"""Reads implementation and shape of fused attention from a dispatched operator.

Flash, memory-efficient, cuDNN, and the unfused math form.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

from phantom.kernels.predict.fused_attention.shape import AttentionShape
from phantom.kernels.request.description import KernelDescription, TensorMeta

# op base name -> (implementation, backward, index of query, layout, index of is_causal, index of dropout)
_OPS: dict[str, tuple[str, bool, int, str, int, int]] = {
    "_scaled_dot_product_flash_attention": ("flash", False, 0, "bhsd", 4, 3),
    "_scaled_dot_product_flash_attention_backward": ("flash", True, 1, "bhsd", 11, 10),
    "_scaled_dot_product_efficient_attention": ("efficient", False, 0, "bhsd", 6, 5),
    "_scaled_dot_product_efficient_attention_backward": ("efficient", True, 1, "bhsd", 11, 9),
    "_scaled_dot_product_cudnn_attention": ("cudnn", False, 0, "bhsd", 6, 5),
    "_scaled_dot_product_cudnn_attention_backward": ("cudnn", True, 1, "bhsd", 14, 13),
    "_scaled_dot_product_fused_attention_overrideable": ("flash", False, 0, "bhsd", 5, 4),
    "_scaled_dot_product_fused_attention_overrideable_backward": ("flash", True, 1, "bhsd", 14, 13),
    "_scaled_dot_product_flash_attention_for_cpu": ("flash", False, 0, "bhsd", 4, 3),
    "_scaled_dot_product_flash_attention_for_cpu_backward": ("flash", True, 1, "bhsd", 7, 6),
    "_scaled_dot_product_attention_math": ("math", False, 0, "bhsd", 5, 4),
    "scaled_dot_product_attention": ("flash", False, 0, "bhsd", 5, 4),
    "_flash_attention_forward": ("flash", False, 0, "bshd", 8, 7),
    "_flash_attention_forward_no_dropout_inplace": ("flash", False, 0, "bshd", 8, 7),
    "_flash_attention_backward": ("flash", True, 1, "bshd", 11, 10),
    "_efficient_attention_forward": ("efficient", False, 0, "bshd", 9, 8),
    "_efficient_attention_backward": ("efficient", True, 1, "bshd", 14, 11),
    "_cudnn_attention_forward": ("cudnn", False, 0, "bhsd", 10, 9),
    "_cudnn_attention_backward": ("cudnn", True, 1, "bhsd", 14, 13),
}  # fmt: skip


@dataclass(frozen=True)
class _Packed:
    """Arguments of packed sequences by index: offsets of queries and keys, their greatest lengths."""

    offsets_q: int
    offsets_k: int
    max_q: int
    max_k: int


_PACKED: dict[str, _Packed] = {
    "_flash_attention_forward": _Packed(3, 4, 5, 6),
    "_flash_attention_forward_no_dropout_inplace": _Packed(3, 4, 5, 6),
    "_flash_attention_backward": _Packed(6, 7, 8, 9),
    "_efficient_attention_forward": _Packed(4, 5, 6, 7),
    "_efficient_attention_backward": _Packed(6, 7, 8, 9),
    "_cudnn_attention_forward": _Packed(4, 5, 6, 7),
    "_cudnn_attention_backward": _Packed(9, 10, 11, 12),
}
# Indices of the window's two sides; of one number, which is the count of keys up to a query's own.
_WINDOW_SIDES = {
    "_flash_attention_forward": (11, 12),
    "_flash_attention_forward_no_dropout_inplace": (11, 12),
    "_flash_attention_backward": (15, 16),
}
_WINDOW_SIZE = {"_efficient_attention_forward": 13, "_efficient_attention_backward": 18}
# Queries per sequence up to this many are priced from the values of the offsets (docs/kernels.md).
_MAX_SEQUENCES = 65_536


def attention_arguments(kernel: KernelDescription) -> tuple[int, str, bool, bool]:
    """Return the index of the query, the layout (``bhsd`` or ``bshd``), causal, and whether there is dropout.

    Raises KeyError for an operator that is no attention known here.
    """
    _, _, q_index, layout, causal_index, dropout_index = _OPS[kernel.base_name]
    shift = 3 if kernel.overload == "quantized" else 0
    causal = bool(kernel.value(causal_index + shift, False))
    return q_index, layout, causal, float(kernel.value(dropout_index + shift, 0.0) or 0.0) > 0.0


def attention_shape(kernel: KernelDescription) -> tuple[str, AttentionShape] | None:
    """Read implementation and shape from a dispatched attention operator.

    None for one that is not known here.
    """
    entry = _OPS.get(kernel.base_name)
    if entry is None:
        return None
    implementation, backward = entry[:2]
    q_index, layout, causal, dropout = attention_arguments(kernel)
    q, k, v = (kernel.need_tensor(q_index + i) for i in range(3))
    batch, heads, kv_heads, q_len, kv_len = _dimensions(kernel, layout, q, k)
    shape = AttentionShape(
        batch,
        heads,
        kv_heads,
        q_len,
        kv_len,
        q.sizes[-1],
        v.sizes[-1],
        causal,
        dropout,
        q.dtype,
        backward,
        _window(kernel),
        _sequences(kernel),
    )
    return implementation, shape


def _window(kernel: KernelDescription) -> tuple[int | None, int | None] | None:
    sides = _WINDOW_SIDES.get(kernel.base_name)
    if sides is not None:
        before, after = (_limit(kernel.value(index)) for index in sides)
        return None if before is None and after is None else (before, after)
    index = _WINDOW_SIZE.get(kernel.base_name)
    size = _limit(kernel.value(index)) if index is not None else None
    return (size - 1, None) if size else None


def _limit(value: object) -> int | None:
    return value if isinstance(value, int) and value >= 0 else None


def _sequences(kernel: KernelDescription) -> tuple[tuple[int, int], ...] | None:
    """Lengths of packed sequences, where the sender knew the values of their offsets."""
    packed = _PACKED.get(kernel.base_name)
    if packed is None:
        return None
    known = dict(kernel.flag("offsets", ()))
    queries, keys = known.get(packed.offsets_q), known.get(packed.offsets_k)
    if queries is None or keys is None or len(queries) != len(keys) or len(queries) > _MAX_SEQUENCES:
        return None
    lengths = tuple(
        (q_end - q_start, k_end - k_start)
        for (q_start, q_end), (k_start, k_end) in zip(pairwise(queries), pairwise(keys))
        if q_end > q_start and k_end > k_start
    )
    return tuple(sorted(lengths)) or None


def _dimensions(
    kernel: KernelDescription, layout: str, q: TensorMeta, k: TensorMeta
) -> tuple[int, int, int, int, int]:
    if len(q.sizes) == 4 and layout == "bhsd":
        return q.sizes[0], q.sizes[1], k.sizes[1], q.sizes[2], k.sizes[2]
    packed = _PACKED.get(kernel.base_name)
    if packed is not None:
        offsets, max_q, max_k = (
            kernel.tensor(packed.offsets_q),
            kernel.value(packed.max_q),
            kernel.value(packed.max_k),
        )
        if offsets is not None and offsets.numel > 1:
            # Packed sequences whose lengths are not known are taken as equal.
            sequences = offsets.numel - 1
            tokens_q = math.prod(q.sizes[:-2])
            tokens_k = math.prod(k.sizes[:-2])
            q_len = min(math.ceil(tokens_q / sequences), int(max_q or tokens_q))
            kv_len = min(math.ceil(tokens_k / sequences), int(max_k or tokens_k))
            return sequences, q.sizes[-2], k.sizes[-2], q_len, kv_len
    if len(q.sizes) == 4:
        return q.sizes[0], q.sizes[2], k.sizes[2], q.sizes[1], k.sizes[1]
    lead = math.prod(q.sizes[:-2])
    return lead, 1, 1, q.sizes[-2], k.sizes[-2]
