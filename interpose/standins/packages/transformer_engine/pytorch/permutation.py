"""Rows of tokens sorted by expert and back: one kernel each, beside the kernels that make the map."""

from __future__ import annotations

from typing import Any

import torch

from interpose.standins import operators
from interpose.standins.surface import missing_names, not_covered


class _MoveRows(torch.autograd.Function):
    """`permuting`: several rows out of one; else rows are summed. Saves the map (and probabilities)."""

    @staticmethod
    def forward(ctx: Any, inp: Any, probs: Any, row_map: Any, rows: int, permuting: bool) -> Any:
        ctx.save_for_backward(inp if probs is not None and not permuting else None, probs, row_map)
        ctx.rest = (inp.shape[0], permuting)
        return _move(inp, probs, row_map, rows, permuting)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        inp, probs, row_map = ctx.saved_tensors
        rows, permuting = ctx.rest
        grad_probs = None
        grad = grad.contiguous()
        if probs is not None:
            grad_probs = torch.empty_like(probs)
            operators.unpermute_rows_kernel([grad] if inp is None else [grad, inp], [grad_probs])
        return _move(grad, probs, row_map, rows, not permuting), grad_probs, None, None, None


def _move(inp: Any, probs: Any, row_map: Any, rows: int, permuting: bool) -> Any:
    out = torch.empty((rows, inp.shape[-1]), dtype=inp.dtype, device=inp.device)
    read = [inp if not permuting or inp.shape[0] > rows else out, row_map]
    kernel = operators.permute_rows_kernel if permuting else operators.unpermute_rows_kernel
    kernel(read if probs is None else [*read, probs], [out])
    return out


class _MoveProbs(torch.autograd.Function):
    """Probabilities [tokens, experts] to one per row."""

    @staticmethod
    def forward(ctx: Any, probs: Any, row_map: Any, rows: int) -> Any:
        ctx.save_for_backward(row_map)
        ctx.like = (probs.shape, probs.dtype)
        out = torch.empty(rows, dtype=probs.dtype, device=probs.device)
        operators.permute_rows_kernel([probs, row_map], [out])
        return out

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        (row_map,) = ctx.saved_tensors
        shape, dtype = ctx.like
        out = torch.empty(shape, dtype=dtype, device=grad.device)
        operators.permute_rows_kernel([grad, row_map], [out])
        return out, None, None


def _row_map(routing_map: Any) -> Any:
    tokens, experts = routing_map.shape
    out = torch.empty((tokens, experts * 2 + 1), dtype=torch.int32, device=routing_map.device)
    operators.permute_rows_kernel([routing_map], [out])
    operators.permute_rows_kernel([out], [out])
    return out


def _rows(routing_map: Any, num_out_tokens: int | None) -> int:
    if num_out_tokens is None or num_out_tokens < 0:
        return int(routing_map.sum().item())
    return int(num_out_tokens)


def moe_permute(
    inp: Any, routing_map: Any, num_out_tokens: int = -1, max_token_num: int = -1, map_type: str = "mask"
) -> tuple[Any, Any]:
    """Tokens in the order of their experts, and the map back."""
    if map_type == "index":
        tokens, experts = routing_map.shape[0], routing_map.shape[-1] if routing_map.dim() > 1 else 1
        rows = tokens * experts if num_out_tokens < 0 else num_out_tokens
        row_map = torch.empty(tokens * experts, dtype=torch.int32, device=inp.device)
        operators.permute_rows_kernel([routing_map], [row_map])
        return _MoveRows.apply(inp, None, row_map, rows, True), row_map
    if map_type != "mask":
        raise not_covered("transformer_engine.pytorch", "moe_permute", why=f"(map_type {map_type!r})")
    rows = _rows(routing_map, num_out_tokens)
    row_map = _row_map(routing_map)
    return _MoveRows.apply(inp, None, row_map, rows, True), row_map


def moe_permute_with_probs(
    inp: Any, probs: Any, routing_map: Any, num_out_tokens: int = -1
) -> tuple[Any, Any, Any]:
    """Likewise with the tokens' probabilities."""
    rows = _rows(routing_map, num_out_tokens)
    row_map = _row_map(routing_map)
    return _MoveRows.apply(inp, None, row_map, rows, True), _MoveProbs.apply(probs, row_map, rows), row_map


def moe_unpermute(
    inp: Any, row_id_map: Any, merging_probs: Any = None, restore_shape: Any = None, map_type: str = "mask",
    probs: Any = None,
) -> Any:  # fmt: skip
    """Tokens in their first order, summed over their experts, weighted where probabilities are given."""
    merging_probs = merging_probs if merging_probs is not None else probs
    if restore_shape is not None:
        rows = int(restore_shape[0])
    elif map_type == "mask":
        rows = row_id_map.shape[0]
    else:
        rows = merging_probs.shape[0] if merging_probs is not None else row_id_map.shape[0]
    return _MoveRows.apply(inp, merging_probs, row_id_map, rows, False)


def _sort_map(split_sizes: Any, sorted_index: Any, rows: int) -> Any:
    out = torch.empty(rows, dtype=torch.int32, device="cuda")
    operators.permute_rows_kernel([t for t in (split_sizes, sorted_index) if t.is_cuda], [out])
    return out


def moe_sort_chunks_by_index(inp: Any, split_sizes: Any, sorted_index: Any) -> Any:
    """Chunks of rows in another order."""
    if inp.shape[0] == 0:
        return inp
    return _MoveRows.apply(inp, None, _sort_map(split_sizes, sorted_index, inp.shape[0]), inp.shape[0], True)


def moe_sort_chunks_by_index_with_probs(
    inp: Any, probs: Any, split_sizes: Any, sorted_index: Any
) -> tuple[Any, Any]:
    """Likewise with one probability per row."""
    if inp.shape[0] == 0:
        return inp, probs
    row_map = _sort_map(split_sizes, sorted_index, inp.shape[0])
    moved = _MoveRows.apply(inp, None, row_map, inp.shape[0], True)
    column = probs.reshape(-1, 1)
    return moved, _MoveRows.apply(column, None, row_map, inp.shape[0], True).reshape(probs.shape)


__getattr__ = missing_names(__name__)
