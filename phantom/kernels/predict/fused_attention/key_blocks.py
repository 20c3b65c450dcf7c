"""How many keys the thread blocks of an attention kernel visit.

A thread block owns a tile of queries of one head and walks over blocks of keys; it skips those that the mask
leaves empty (FlashAttention-2, section 3.1; the same in FlashAttention-3, cuDNN and CUTLASS's fused kernels).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache


@dataclass(frozen=True)
class KeyVisits:
    """Of one head of one sequence: query tiles, keys visited by all of them, and the most that one visits."""

    tiles: int
    keys: int
    longest: int


@lru_cache(maxsize=65_536)
def key_visits(
    q_len: int,
    kv_len: int,
    *,
    tile_q: int,
    block_k: int,
    causal: bool,
    window: tuple[int | None, int | None] | None = None,
) -> KeyVisits:
    """Count the keys that tiles of *tile_q* queries visit in whole blocks of *block_k* keys.

    The last query is beside the last key (as in FlashAttention from 2.1), and *window* is relative to that.
    """
    tiles = -(-q_len // tile_q)
    shift = kv_len - q_len
    before, after = window if window is not None else (None, None)
    if causal:
        after = 0 if after is None else min(after, 0)
    keys = longest = 0
    for tile in range(tiles):
        first, last = tile * tile_q + shift, min((tile + 1) * tile_q, q_len) - 1 + shift
        end = kv_len if after is None else min(kv_len, last + after + 1)
        start = 0 if before is None else max(0, first - before)
        if end <= start:
            continue
        visited = (-(-end // block_k) - start // block_k) * block_k
        keys += visited
        longest = max(longest, visited)
    return KeyVisits(tiles, keys, longest)
