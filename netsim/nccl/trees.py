"""NCCL's double binary tree."""

from __future__ import annotations

from functools import lru_cache


def binary_tree_parent(count: int, rank: int) -> int:
    """Parent of `rank` in NCCL's binary tree of `count` (NVIDIA/nccl `src/graph/trees.cc`), -1 for the
    root.
    """
    if rank == 0:
        return -1
    bit = 1
    while not rank & bit:
        bit <<= 1
    up = (rank ^ bit) | (bit << 1)
    return rank ^ bit if up >= count else up


@lru_cache(maxsize=256)
def double_tree_edges(count: int) -> tuple[tuple[int, int], ...]:
    """(parent, child) edges of both trees; the second is the first mirrored (even count) or shifted by one
    (odd).
    """
    edges = []
    for rank in range(count):
        parent = binary_tree_parent(count, rank)
        if parent < 0:
            continue
        edges.append((parent, rank))
        if count % 2:
            edges.append(((parent + 1) % count, (rank + 1) % count))
        else:
            edges.append((count - 1 - parent, count - 1 - rank))
    return tuple(edges)
