"""Tells the memory log what the device's blocks hold: parameters, gradients, optimizer state.

The optimizer knows all three, so the categories are taken from it whenever its blocks may have changed.
Blocks that nobody names are told apart by when they were allocated (csrc/memory/MemoryLog.cpp) and, at the
peak, by when they were freed (phantom/report/memory.py).
"""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator
from types import ModuleType
from typing import Any

from interpose.extension_protocol import Extension

TAGGED_STEPS = 4
"""By then the state of an optimizer exists."""

PARAMETERS, GRADIENTS, OPTIMIZER_STATE = "parameters", "gradients", "optimizer state"


def _local(tensor: Any) -> Any:
    """The rank's own part of a DTensor; other tensors as they are."""
    return getattr(tensor, "_local_tensor", tensor)


def _tensors(value: Any) -> Iterator[Any]:
    import torch

    if isinstance(value, torch.Tensor):
        yield _local(value)
    elif isinstance(value, dict):
        for entry in value.values():
            yield from _tensors(entry)
    elif isinstance(value, (list, tuple)):
        for entry in value:
            yield from _tensors(entry)


def tag_optimizer(extension: Extension, optimizer: Any) -> None:
    """Names the blocks of the optimizer's parameters, their gradients and the optimizer's state."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    _tag_parameters(extension, parameters)
    state = [tensor for entry in optimizer.state.values() for tensor in _tensors(entry)]
    extension.tag_memory(OPTIMIZER_STATE, [tensor for tensor in state if tensor.is_cuda])


def _tag_parameters(extension: Extension, parameters: Iterable[Any]) -> None:
    found = [p for p in parameters if p.is_cuda]
    extension.tag_memory(PARAMETERS, [_local(p.detach()) for p in found])
    extension.tag_memory(GRADIENTS, [_local(p.grad) for p in found if p.grad is not None])


def tag_everything(extension: Extension) -> None:
    """Names the blocks of every parameter and optimizer of the process; slow, for the report of an OOM."""
    import torch

    objects = gc.get_objects()
    _tag_parameters(extension, [o for o in objects if type(o) is torch.nn.Parameter])
    for found in objects:
        if isinstance(found, torch.optim.Optimizer) and getattr(found, "param_groups", None):
            tag_optimizer(extension, found)


def watch(module: ModuleType, extension: Extension) -> None:
    """Tags after the first optimizer steps; `module` is torch.optim.optimizer."""
    extension.set_memory_namer(lambda: tag_everything(extension))
    steps: dict[int, int] = {}

    def after_step(optimizer: Any, *_: Any) -> None:
        done = steps.get(id(optimizer), 0)
        if done < TAGGED_STEPS:
            steps[id(optimizer)] = done + 1
            tag_optimizer(extension, optimizer)

    module.register_optimizer_step_post_hook(after_step)
