"""Tensor parallelism as Megatron has it: column- and row-parallel linears, spread embedding and loss."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

Group = dist.ProcessGroup | None


def group_size(group: Group) -> int:
    """Return the ranks in *group*; None is a rank alone."""
    return 1 if group is None else dist.get_world_size(group)


class _Copy(torch.autograd.Function):
    """Forward: nothing. Backward: sum of the gradients over the group."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group) -> Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        gradient = gradients[0].contiguous()
        dist.all_reduce(gradient, group=ctx.group)
        return gradient, None


class _Reduce(torch.autograd.Function):
    """Forward: sum over the group, in place. Backward: nothing."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group) -> Tensor:
        dist.all_reduce(x, group=group)
        ctx.mark_dirty(x)
        return x

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return gradients[0], None


def copy_to_group(x: Tensor, group: Group) -> Tensor:
    """Enter a tensor-parallel region."""
    return x if group is None else _Copy.apply(x, group)


def reduce_over_group(x: Tensor, group: Group) -> Tensor:
    """Leave a tensor-parallel region."""
    return x if group is None else _Reduce.apply(x, group)


class ColumnLinear(nn.Module):
    """y = x W^T + b with the rows of W spread over the group; the result stays spread."""

    def __init__(self, inputs: int, outputs: int, *, group: Group, bias: bool) -> None:
        super().__init__()
        local = outputs // group_size(group)
        self.weight = nn.Parameter(torch.empty(local, inputs))
        self.bias = nn.Parameter(torch.empty(local)) if bias else None
        self.group = group

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(copy_to_group(x, self.group), self.weight, self.bias)


class RowLinear(nn.Module):
    """y = sum over the group of x W^T + b, with the columns of W spread."""

    def __init__(self, inputs: int, outputs: int, *, group: Group, bias: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(outputs, inputs // group_size(group)))
        self.bias = nn.Parameter(torch.empty(outputs)) if bias else None
        self.group = group

    def forward(self, x: Tensor) -> Tensor:
        return reduce_over_group(F.linear(x, self.weight, self.bias), self.group)


class VocabularyEmbedding(nn.Module):
    """A word embedding whose rows are spread over the group."""

    def __init__(self, vocabulary: int, hidden: int, *, group: Group) -> None:
        super().__init__()
        self.local = vocabulary // group_size(group)
        self.first = 0 if group is None else dist.get_rank(group) * self.local
        self.weight = nn.Parameter(torch.empty(self.local, hidden))
        self.group = group

    def forward(self, ids: Tensor) -> Tensor:
        if self.group is None:
            return F.embedding(ids, self.weight)
        outside = (ids < self.first) | (ids >= self.first + self.local)
        local = (ids - self.first).masked_fill(outside, 0)
        return reduce_over_group(
            F.embedding(local, self.weight).masked_fill(outside.unsqueeze(-1), 0.0), self.group
        )


class _VocabularyCrossEntropy(torch.autograd.Function):
    """Cross-entropy of logits (tokens, local vocabulary) in fp32, the operations of Megatron-LM's."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, target: Tensor, group: Group) -> Tensor:
        rank = 0 if group is None else dist.get_rank(group)
        local = logits.shape[-1]
        largest = logits.max(dim=-1).values
        if group is not None:
            dist.all_reduce(largest, op=dist.ReduceOp.MAX, group=group)
        logits = logits - largest.unsqueeze(-1)
        outside = (target < rank * local) | (target >= (rank + 1) * local)
        index = (target - rank * local).masked_fill(outside, 0)
        picked = logits.gather(-1, index.unsqueeze(-1)).squeeze(-1).masked_fill(outside, 0.0)
        exponents = logits.exp_()
        total = exponents.sum(dim=-1)
        if group is not None:
            dist.all_reduce(picked, group=group)
            dist.all_reduce(total, group=group)
        exponents.div_(total.unsqueeze(-1))
        ctx.save_for_backward(exponents, outside, index)
        return total.log() - picked

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        softmax, outside, index = ctx.saved_tensors
        softmax.scatter_add_(-1, index.unsqueeze(-1), -(~outside).to(softmax.dtype).unsqueeze(-1))
        return softmax.mul_(gradients[0].unsqueeze(-1)), None, None


def vocabulary_cross_entropy(logits: Tensor, target: Tensor, group: Group) -> Tensor:
    """Return the loss of every token: logits (tokens, local vocabulary), target (tokens)."""
    loss: Tensor = _VocabularyCrossEntropy.apply(logits, target, group)
    return loss
