"""Splits without a copy, whose backward puts the gradients side by side again."""

from __future__ import annotations

from typing import Any

import torch


class SplitAlongDim(torch.autograd.Function):
    """`apply(mixed, dim, sizes)`: views of the parts."""

    @staticmethod
    def forward(
        ctx: Any, mixed: Any, split_dim: int, split_size_or_sections: Any, squeeze: bool = False
    ) -> Any:
        """The parts."""
        ctx.split_dim = split_dim
        parts = torch.split(mixed, split_size_or_sections, dim=split_dim)
        ctx.sizes = [part.shape[split_dim] for part in parts]
        ctx.squeeze = squeeze
        return tuple(part.squeeze(split_dim) if squeeze else part for part in parts)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        """One gradient; without a copy where the parts already lie side by side."""
        if ctx.squeeze:
            grads = tuple(grad.unsqueeze(ctx.split_dim) for grad in grads)
        first = grads[0]
        dim = ctx.split_dim % first.dim()
        total = sum(ctx.sizes)
        adjacent, offset = True, first.storage_offset()
        for grad, size in zip(grads, ctx.sizes):
            adjacent = (
                adjacent
                and grad.stride() == first.stride()
                and grad.untyped_storage().data_ptr() == first.untyped_storage().data_ptr()
                and grad.storage_offset() == offset
            )
            offset += size * grad.stride(dim)
        if adjacent:
            shape = list(first.shape)
            shape[dim] = total
            whole = torch.empty(0, dtype=first.dtype, device=first.device)
            whole.set_(first.untyped_storage(), first.storage_offset(), shape, first.stride())
            return whole, None, None, None
        return torch.cat(grads, dim=dim), None, None, None
