"""Memory that fused attention kernels allocate for themselves."""

from __future__ import annotations

import math

from phantom.kernels.predict.fused_attention.shape import AttentionShape


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
