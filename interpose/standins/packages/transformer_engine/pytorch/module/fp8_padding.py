"""Pads the rows of every group to what fp8 products want."""

from __future__ import annotations

from typing import Any

import torch

from interpose.standins import operators
from interpose.standins.surface import missing_names

from ..fp8 import FP8GlobalStateManager


def _padded(m_splits: Any, size: int | None) -> list[int]:
    if size is None:
        recipe = FP8GlobalStateManager.get_fp8_recipe()
        size = 32 if recipe.mxfp8() else 16
    return [(int(m) + size - 1) // size * size for m in m_splits]


class _Resize(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, inp: Any, rows: int) -> Any:
        ctx.rows = inp.shape[0]
        return _copy_rows(inp, rows)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return _copy_rows(grad, ctx.rows), None


def _copy_rows(tensor: Any, rows: int) -> Any:
    out = torch.empty((rows, tensor.shape[-1]), dtype=tensor.dtype, device=tensor.device)
    operators.permute_rows_kernel([tensor if tensor.shape[0] < rows else out], [out])
    return out


class Fp8Padding(torch.nn.Module):
    """`forward(inp, m_splits)`: the padded input and its splits."""

    def __init__(self, num_gemms: int, align_size: int | None = None) -> None:
        super().__init__()
        self.num_gemms, self.align_size = num_gemms, align_size

    def forward(self, inp: Any, m_splits: Any) -> tuple[Any, list[int]]:
        """Copies where there is something to pad."""
        padded = _padded(m_splits, self.align_size)
        if list(m_splits) == padded:
            return inp, list(m_splits)
        return _Resize.apply(inp, sum(padded)), padded


class Fp8Unpadding(torch.nn.Module):
    """`forward(inp, m_splits)`: without the padding."""

    def __init__(self, num_gemms: int, align_size: int | None = None) -> None:
        super().__init__()
        self.num_gemms, self.align_size = num_gemms, align_size

    def forward(self, inp: Any, m_splits: Any) -> Any:
        """Copies where there was something to pad."""
        if list(m_splits) == _padded(m_splits, self.align_size):
            return inp
        return _Resize.apply(inp, sum(int(m) for m in m_splits))


__getattr__ = missing_names(__name__)
