"""Time and scratch memory of fused attention kernels.

Flash, memory-efficient, cuDNN, and the unfused math form.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

from phantom.kernels.gpu import GpuSpec
from phantom.kernels.request.description import KernelDescription, TensorMeta

_BLOCK_Q = 128


@dataclass(frozen=True)
class AttentionShape:
    """One attention call: *batch* sequences, query and key/value heads, lengths and head sizes (elements)."""

    batch: int
    heads: int
    kv_heads: int
    q_len: int
    kv_len: int
    head_dim: int
    v_head_dim: int
    causal: bool
    dropout: bool
    dtype: str
    backward: bool
    window: int | None = None

    @property
    def flops(self) -> float:
        """Multiply-adds counted as two.

        4 q kv d forward, 2.5 times that backward; half where causal (FlashAttention-2's count).
        """
        full = 2.0 * self.batch * self.heads * self.q_len * self.kv_len * (self.head_dim + self.v_head_dim)
        visible = self.visible_fraction
        return full * visible * (2.5 if self.backward else 1.0)

    @property
    def visible_fraction(self) -> float:
        """Share of the score matrix that is not masked away whole."""
        if self.window is not None and self.window < self.kv_len:
            return min(1.0, (self.window + 1) / self.kv_len)
        return 0.5 if self.causal else 1.0


def attention_s(
    shape: AttentionShape, *, peak_flops_per_s: float, gpu: GpuSpec, constants: Mapping[str, float]
) -> float:
    """Return the seconds of one fused attention kernel (backward: with its pre- and post-processing).

    Each thread block takes 128 queries of one head and walks over the keys it may see; it pays a start and
    end worth
    ``overhead_keys`` keys, and causal blocks half a block more at the diagonal.  The blocks run in waves
    over the SMs;
    the last, part-filled wave counts ``tail`` of a whole one.  Rate = peak * ``efficiency_<head dim>`` for
    head dims 64, 128, 256, between them
    interpolated; backward has its own group.  ``causal_rate`` covers load imbalance.
    """
    if min(shape.batch, shape.heads, shape.q_len, shape.kv_len) <= 0:
        return constants["floor_us"] * 1e-6
    head_dim = max(shape.head_dim, shape.v_head_dim)
    visible_keys = shape.kv_len * shape.visible_fraction
    if shape.causal:
        visible_keys += _BLOCK_Q / 2
    keys = min(visible_keys, shape.kv_len) + constants["overhead_keys"]
    blocks = math.ceil(shape.q_len / _BLOCK_Q) * shape.batch * shape.heads
    waves = blocks / gpu.sm_count
    whole = math.floor(waves)
    part = waves - whole
    effective_waves = whole + (max(part, constants["tail"] if whole else 1.0) if part > 0 else 0.0)
    block_flops = (
        2.0 * _BLOCK_Q * keys * (shape.head_dim + shape.v_head_dim) * (2.5 if shape.backward else 1.0)
    )
    rate = peak_flops_per_s / gpu.sm_count * _head_dim_efficiency(head_dim, constants)
    if shape.causal:
        rate *= constants["causal_rate"]
    if shape.dropout:
        rate *= constants["dropout_rate"]
    item = 2 if shape.dtype in ("float16", "bfloat16") else 4
    moved = shape.batch * item * (
        2 * shape.heads * shape.q_len * shape.head_dim + 2 * shape.kv_heads * shape.kv_len * shape.v_head_dim
    ) * (2.5 if shape.backward else 1.0)  # fmt: skip
    memory_s = moved / (gpu.memory_bytes_per_s * 0.8)
    return constants["floor_us"] * 1e-6 + max(effective_waves * block_flops / rate, memory_s)


def _head_dim_efficiency(head_dim: int, constants: Mapping[str, float]) -> float:
    points = [
        (64, constants["efficiency_64"]),
        (128, constants["efficiency_128"]),
        (256, constants["efficiency_256"]),
    ]
    if head_dim <= 64:
        # Padded to the next kernel size (32 or 64): the arithmetic done is that of the padded head.
        padded = 32 if head_dim <= 32 else 64
        return points[0][1] * head_dim / padded * (0.7 if padded == 32 else 1.0)
    for (low, low_rate), (high, high_rate) in pairwise(points):
        if head_dim <= high:
            return low_rate + (high_rate - low_rate) * (head_dim - low) / (high - low)
    return points[-1][1] * 256 / head_dim


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
_VARLEN = {
    "_flash_attention_forward": (3, 5, 6), "_flash_attention_forward_no_dropout_inplace": (3, 5, 6),
    "_flash_attention_backward": (6, 8, 9),
    "_efficient_attention_forward": (4, 6, 7), "_efficient_attention_backward": (6, 8, 9),
    "_cudnn_attention_forward": (4, 6, 7),
}  # fmt: skip


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
    window: int | None = None
    if (
        kernel.base_name == "_flash_attention_forward"
        and isinstance(kernel.value(11), int)
        and kernel.value(11) >= 0
    ):
        window = int(kernel.value(11)) + max(int(kernel.value(12) or 0), 0)
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
        window,
    )
    return implementation, shape


def _dimensions(
    kernel: KernelDescription, layout: str, q: TensorMeta, k: TensorMeta
) -> tuple[int, int, int, int, int]:
    if len(q.sizes) == 4 and layout == "bhsd":
        return q.sizes[0], q.sizes[1], k.sizes[1], q.sizes[2], k.sizes[2]
    varlen = _VARLEN.get(kernel.base_name)
    if varlen is not None:
        offsets, max_q, max_k = kernel.tensor(varlen[0]), kernel.value(varlen[1]), kernel.value(varlen[2])
        if offsets is not None and offsets.numel > 1:
            # Packed sequences: their lengths are data, so they are taken as equal.
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


def scratch_bytes(implementation: str, shape: AttentionShape) -> int:
    """Return the bytes a fused kernel allocates for itself.

    Flash backward: an fp32 accumulator of dQ and the row sums, lengths rounded to 128, head size to 32, and
    with grouped
    queries dK and dV per query head (flash_api.cpp, mha_bwd).  Efficient backward: the fp32 row sums and,
    for 16-bit types, the
    accumulator of dQ.  cuDNN backward: likewise.  Forward: none.
    """
    if not shape.backward:
        return 0
    q_rounded = math.ceil(shape.q_len / 128) * 128
    d_rounded = math.ceil(shape.head_dim / 32) * 32
    rows = shape.batch * shape.heads * q_rounded
    item = 2 if shape.dtype in ("float16", "bfloat16") else 4
    total = rows * 4
    if implementation == "flash" or item == 2:
        total += rows * d_rounded * 4
    if shape.kv_heads != shape.heads and implementation != "math":
        total += 2 * shape.batch * shape.kv_len * shape.heads * shape.head_dim * item
    return total
