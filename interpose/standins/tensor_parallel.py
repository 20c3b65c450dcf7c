"""The collectives that Transformer Engine's modules issue on the tensor-parallel group."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist


def size_of(group: Any) -> int:
    """Ranks of the group; 1 without one."""
    return 1 if group is None or not dist.is_initialized() else dist.get_world_size(group)


def gather_first(tensor: Any, group: Any, *, async_op: bool = False) -> tuple[Any, Any]:
    """All ranks' parts along the first dimension, and the work to wait for."""
    size = size_of(group)
    if size == 1:
        return tensor, None
    whole = torch.empty((size * tensor.shape[0], *tensor.shape[1:]), dtype=tensor.dtype, device=tensor.device)
    work = dist.all_gather_into_tensor(whole, tensor.contiguous(), group=group, async_op=async_op)
    return whole, work


def reduce_scatter_first(tensor: Any, group: Any, *, async_op: bool = False) -> tuple[Any, Any]:
    """The rank's part of the sum along the first dimension, and the work to wait for."""
    size = size_of(group)
    if size == 1:
        return tensor, None
    part = torch.empty((tensor.shape[0] // size, *tensor.shape[1:]), dtype=tensor.dtype, device=tensor.device)
    work = dist.reduce_scatter_tensor(part, tensor.contiguous(), group=group, async_op=async_op)
    return part, work


def all_reduce(tensor: Any, group: Any, *, async_op: bool = False) -> tuple[Any, Any]:
    """The sum over all ranks, in place, and the work to wait for."""
    if size_of(group) == 1:
        return tensor, None
    tensor = tensor.contiguous()
    return tensor, dist.all_reduce(tensor, group=group, async_op=async_op)


def wait(work: Any) -> None:
    """Lets the current stream wait for an asynchronous collective."""
    if work is not None:
        work.wait()
