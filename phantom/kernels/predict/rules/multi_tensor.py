"""How many kernels ``_foreach_*`` and fused optimizers launch: PyTorch's multi-tensor-apply packs chunks of
tensors per launch.

Limits from aten/src/ATen/native/cuda/MultiTensorApply.cuh: chunks of 65,536 elements, at most 320 chunks
and (by the number of
tensor lists) 110, 64, 48, 36 or 30 tensors per launch; with per-tensor scalars or steps 96, 64, 48, 36 or 30.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

_CHUNK_ELEMENTS = 65_536
_MAX_BLOCKS = 320
_MAX_TENSORS = (110, 64, 48, 36, 30)
_MAX_TENSORS_SCALARS = (96, 64, 48, 36, 30)


def launches(numels: Sequence[int], *, depth: int, scalars: bool = False) -> int:
    """Return the launches for tensors of *numels* elements in *depth* parallel lists.

    *scalars*: each carries its own.
    """
    limits = _MAX_TENSORS_SCALARS if scalars else _MAX_TENSORS
    max_tensors = limits[min(max(depth, 1), len(limits)) - 1]
    count, tensors, blocks = 0, 0, 0
    for numel in numels:
        if numel == 0:
            continue
        tensors += 1
        chunks = math.ceil(numel / _CHUNK_ELEMENTS)
        for chunk in range(chunks):
            blocks += 1
            tensor_done = chunk == chunks - 1
            if (tensors == max_tensors and tensor_done) or blocks == _MAX_BLOCKS:
                count += 1
                blocks = 0
                tensors = 0 if tensor_done else 1
    return count + (1 if blocks else 0)
