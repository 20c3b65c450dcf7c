"""Limits of a streaming multiprocessor by CUDA compute capability (major, minor).

The virtual device reports them and the cost model computes occupancy from them. CUDA C++ Programming Guide,
"Compute Capabilities".
"""

from __future__ import annotations

Capability = tuple[int, int]

SYSTEM_SHARED_BYTES = 1024
"""Shared memory that the system takes of each block, from compute capability 8.0."""

_SHARED_KIB = {
    (6, 0): 64,
    (7, 0): 96,
    (7, 5): 64,
    (8, 0): 164,
    (8, 6): 100,
    (8, 7): 164,
    (8, 9): 100,
    (9, 0): 228,
    (10, 0): 228,
    (10, 3): 228,
}
_THREADS = {(7, 5): 1024, (8, 6): 1536, (8, 9): 1536, (12, 0): 1536}
_BLOCKS = {(7, 5): 16, (8, 6): 16, (8, 9): 24, (12, 0): 24}


def shared_memory_bytes(capability: Capability) -> int:
    """Shared memory of a multiprocessor."""
    return _SHARED_KIB.get(capability, 100) << 10


def system_shared_bytes(capability: Capability) -> int:
    """Shared memory of each block that the program cannot have."""
    return SYSTEM_SHARED_BYTES if capability >= (8, 0) else 0


def max_threads(capability: Capability) -> int:
    """Threads that a multiprocessor holds at once."""
    return _THREADS.get(capability, 2048)


def max_blocks(capability: Capability) -> int:
    """Blocks that a multiprocessor holds at once."""
    return _BLOCKS.get(capability, 32)
