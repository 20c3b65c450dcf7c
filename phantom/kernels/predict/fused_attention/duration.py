"""Seconds of one fused attention kernel."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import pairwise

from phantom.kernels.gpu import GpuSpec
from phantom.kernels.predict.fused_attention.key_blocks import key_visits
from phantom.kernels.predict.fused_attention.shape import AttentionShape

_BACKWARD = 2.5  # five products for forward's two (FlashAttention-2, section 3.1)
_SPLIT_BELOW = 0.8  # share of the multiprocessors (flash_api.cpp, num_splits_heuristic)
_MAX_SPLITS = 128


def attention_s(
    shape: AttentionShape,
    *,
    peak_flops_per_s: float,
    gpu: GpuSpec,
    constants: Mapping[str, float],
    key_item_bytes: float | None = None,
) -> float:
    """Return the seconds of one fused attention kernel (backward: with its pre- and post-processing).

    A thread block owns ``tile_q`` queries of one head (``tile_q_64`` for heads of up to 64; backward:
    keys of one head, the walk is the mirror image) and visits blocks of ``block_k`` keys; its start and
    end cost as much as ``overhead_keys`` keys, and where the mask cuts a block ``mask_keys`` more. Blocks
    are spread over the multiprocessors: the kernel ends after the mean load of one plus ``tail`` of the
    longest block, and not before that block. Kernels that have ``splits_keys`` share out the keys of a
    block where few blocks are there. The rate of a multiprocessor is its share of the peak times
    ``efficiency_<head size>``, interpolated between the sizes given. Arithmetic and memory traffic
    (queries, keys, values and result once; backward 2.5 times that) overlap by a norm of exponent
    ``norm``; ``dram`` is the share of the memory's bandwidth, ``l2_gain`` what it gains while all fits
    ``l2_share`` of the L2. Kernels much longer than ``clock_drop_ms`` run ``clock_drop`` slower: the
    power limit lowers the clock. *key_item_bytes*: size of an element of keys and values, if it is
    another.
    """
    if min(shape.heads, shape.q_tokens, shape.kv_tokens) <= 0:
        return constants["floor_us"] * 1e-6
    passes = _BACKWARD if shape.backward else 1.0
    item = 2.0 if shape.dtype in ("float16", "bfloat16") else (1.0 if "float8" in shape.dtype else 4.0)
    tile_q = _tile_q(shape, constants)
    flops_per_key = 2.0 * tile_q * (shape.head_dim + shape.v_head_dim) * passes
    rate = peak_flops_per_s / gpu.sm_count * head_size_efficiency(shape, constants)
    if shape.dropout:
        rate *= constants["dropout_rate"]
    arithmetic_s = _span_keys(shape, tile_q, gpu, constants) * flops_per_key / rate

    rows_bytes = shape.heads * shape.q_tokens * max(item, 2.0) + shape.kv_heads * shape.kv_tokens * (
        item if key_item_bytes is None else key_item_bytes
    )
    moved = rows_bytes * (shape.head_dim + shape.v_head_dim) * passes
    memory_s = moved / dram_bytes_per_s(moved, gpu=gpu, constants=constants)
    norm = constants["norm"]
    seconds = float((arithmetic_s**norm + memory_s**norm) ** (1.0 / norm))
    drop = constants.get("clock_drop", 0.0)
    if drop:
        seconds *= 1.0 + drop * (1.0 - math.exp(-seconds * 1e3 / constants["clock_drop_ms"]))
    return constants["floor_us"] * 1e-6 + seconds


def dram_bytes_per_s(moved_bytes: float, *, gpu: GpuSpec, constants: Mapping[str, float]) -> float:
    """Rate at which *moved_bytes* pass: ``dram`` of the datasheet's, more while they fit the L2."""
    gain = constants.get("l2_gain", 0.0)
    cached = gain * math.exp(-moved_bytes / (constants["l2_share"] * gpu.l2_bytes)) if gain else 0.0
    return gpu.memory_bytes_per_s * constants["dram"] * (1.0 + cached)


def _tile_q(shape: AttentionShape, constants: Mapping[str, float]) -> int:
    if max(shape.head_dim, shape.v_head_dim) <= 64 and "tile_q_64" in constants:
        return int(constants["tile_q_64"])
    return int(constants["tile_q"])


def _span_keys(shape: AttentionShape, tile_q: int, gpu: GpuSpec, constants: Mapping[str, float]) -> float:
    """Keys that the busiest multiprocessor visits, overheads included."""
    overhead = constants["overhead_keys"]
    if shape.causal or shape.window is not None:
        overhead += constants.get("mask_keys", 0.0)
    visited = longest = 0.0
    blocks = 0
    for (q_len, kv_len), count in shape.lengths.items():
        found = key_visits(
            q_len,
            kv_len,
            tile_q=tile_q,
            block_k=int(constants["block_k"]),
            causal=shape.causal,
            window=shape.window,
        )
        visited += count * (found.keys + found.tiles * overhead)
        longest = max(longest, found.longest + overhead)
        blocks += count * found.tiles * shape.heads
    splits = 1
    may_split = constants.get("splits_keys") and not shape.backward and not shape.dropout
    if may_split and blocks < _SPLIT_BELOW * gpu.sm_count:
        splits = max(1, min(gpu.sm_count // blocks, _MAX_SPLITS))
    total = visited + (splits - 1) * blocks / shape.heads * overhead
    longest = (longest - overhead) / splits + overhead
    return max(total * shape.heads / gpu.sm_count + constants["tail"] * longest, longest)


def head_size_efficiency(shape: AttentionShape, constants: Mapping[str, float]) -> float:
    """Share of the peak at the mean of the head sizes of queries and of values (MLA: 192 and 128)."""
    head_dim = (shape.head_dim + shape.v_head_dim) / 2
    points = [
        (size, constants[name])
        for size in (64, 128, 160, 192, 256, 512)
        if (name := f"efficiency_{size}") in constants
    ]
    if head_dim <= 64:
        # Padded to the next kernel size (32 or 64): the arithmetic done is that of the padded head.
        padded = 32 if head_dim <= 32 else 64
        return points[0][1] * head_dim / padded * (0.7 if padded == 32 else 1.0)
    for (low, low_rate), (high, high_rate) in pairwise(points):
        if head_dim <= high:
            return low_rate + (high_rate - low_rate) * (head_dim - low) / (high - low)
    last_size, last_rate = points[-1]
    return last_rate * last_size / head_dim
