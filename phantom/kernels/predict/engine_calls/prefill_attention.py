"""Attention of a prompt as an inference engine runs it: forward, causal, into a paged key cache."""

from __future__ import annotations

import math
from collections.abc import Mapping

from phantom.kernels.gpu import GpuSpec
from phantom.kernels.predict.fused_attention.duration import attention_s, dram_bytes_per_s
from phantom.kernels.predict.fused_attention.shape import AttentionShape

_ITEM_BYTES = 2.0  # activations are bfloat16 before any cast
_THREADS = 512  # vLLM's reshape_and_cache_flash: a block of up to 512 threads writes one token
_RESIDENT_THREADS = 2048  # of a multiprocessor
_LEAST_THREADS = 64


def prefill_attention_s(
    shape: AttentionShape,
    *,
    cache_item_bytes: float,
    peak_flops_per_s: float,
    gpu: GpuSpec,
    constants: Mapping[str, float],
) -> float:
    """Return the seconds of one call: the attention kernel, then what the engine does with queries and keys.

    ``query_passes`` and ``key_passes``: how often queries, and keys and values, are read and written once
    more (rotary embedding, casts, copies into the cache); ``cache_block_us``: how long a thread block
    takes that writes one token into the cache, ``cache_loop`` of that again for every further 512
    elements; ``sequence_us``: the share of a sequence in the schedule that FlashAttention-3 makes first.
    """
    seconds = attention_s(
        shape,
        peak_flops_per_s=peak_flops_per_s,
        gpu=gpu,
        constants=constants,
        key_item_bytes=cache_item_bytes,
    )
    tokens, keys = shape.q_tokens, shape.kv_heads * shape.head_dim
    moved = 2.0 * tokens * (shape.heads * shape.head_dim * _ITEM_BYTES + keys * cache_item_bytes)
    passes = constants.get("key_passes", 0.0) * keys
    passes += constants.get("query_passes", 0.0) * shape.heads * shape.head_dim
    rate = dram_bytes_per_s(moved, gpu=gpu, constants=constants)
    seconds += 2.0 * _ITEM_BYTES * tokens * passes / rate
    block_us = constants.get("cache_block_us", 0.0)
    if block_us:
        threads = min(_THREADS, max(keys, _LEAST_THREADS))
        loops = 1.0 + (math.ceil(keys / _THREADS) - 1) * constants["cache_loop"]
        seconds += block_us * 1e-6 * loops * tokens / gpu.sm_count * threads / _RESIDENT_THREADS
    return seconds + constants.get("sequence_us", 0.0) * 1e-6 * shape.batch
