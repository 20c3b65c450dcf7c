"""The products without autograd."""

from typing import Any

import torch

from interpose.standins import operators
from interpose.standins.surface import missing_names


def gmm(a: Any, b: Any, batch_sizes: Any, trans_a: bool = False, trans_b: bool = False, c: Any = None) -> Any:
    """Products of groups of `batch_sizes` rows of `a`, one kernel.

    a[tokens, k] b[groups, k, n] gives [tokens, n]; with `trans_b` b is [groups, n, k]; with `trans_a` both
    are [tokens, ...] and the result is [groups, k, n].
    """
    sizes = batch_sizes.tolist()
    if c is None:
        n = b.shape[1] if trans_a or trans_b else b.shape[2]
        shape = (len(sizes), a.shape[1], n) if trans_a else (a.shape[0], n)
        c = torch.empty(shape, dtype=a.dtype, device=a.device)
    left = [part.t() if trans_a else part for part in a.split(sizes)]
    right = b.split(sizes) if trans_a else [part.t() if trans_b else part for part in b.unbind()]
    out = c.unbind() if trans_a else c.split(sizes)
    chosen = [triple for triple, size in zip(zip(left, right, out), sizes) if size]
    if chosen:
        operators.grouped_product(*(list(side) for side in zip(*chosen)))
    return c


__getattr__ = missing_names(__name__)
