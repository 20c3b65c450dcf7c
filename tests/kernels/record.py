"""Records what a piece of torch code dispatches, as kernel descriptions, on CPU or meta tensors."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from phantom.kernels.request.description import (
    Argument,
    IntList,
    KernelDescription,
    Opaque,
    TensorList,
    TensorMeta,
)


def meta_of(tensor: torch.Tensor) -> TensorMeta:
    strided = tensor.layout == torch.strided
    strides = tuple(tensor.stride()) if strided else ()
    return TensorMeta(str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), strides, "cuda")


def argument(value: Any) -> Argument:
    if isinstance(value, torch.Tensor):
        return meta_of(value)
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (list, tuple)):
        if any(isinstance(item, torch.Tensor) for item in value):
            return TensorList(tuple(meta_of(i) if isinstance(i, torch.Tensor) else None for i in value))
        if all(isinstance(item, (bool, int)) for item in value):
            return IntList(tuple(map(int, value)))
    return Opaque(str(value))


def describe(func: torch._ops.OpOverload, args: Any, kwargs: Any, result: Any) -> KernelDescription:
    values = []
    for i, parameter in enumerate(func._schema.arguments):
        if i < len(args):
            values.append(args[i])
        elif parameter.name in kwargs:
            values.append(kwargs[parameter.name])
        else:
            values.append(parameter.default_value)
    outs = result if isinstance(result, (list, tuple)) else (result,)
    flat: list[TensorMeta | TensorList | None] = []
    for out in outs:
        made = argument(out)
        flat.append(made if isinstance(made, (TensorMeta, TensorList)) else None)
    return KernelDescription(func._schema.name + ("." + func._overloadname if func._overloadname !=
    "default" else ""),
                             tuple(argument(v) for v in values), tuple(flat))  # fmt: skip


class Recorder(TorchDispatchMode):
    """Collects the description of every dispatched operator in ``kernels``."""

    def __init__(self) -> None:
        super().__init__()
        self.kernels: list[KernelDescription] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.kernels.append(describe(func, args, kwargs or {}, result))
        return result
