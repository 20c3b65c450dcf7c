"""Makes real arguments for a kernel description, with values that the operator accepts."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from phantom.kernels.request.description import IntList, KernelDescription, Opaque, TensorList, TensorMeta

_SCALAR_TYPES: dict[int, torch.dtype] = {
    0: torch.uint8, 1: torch.int8, 2: torch.int16, 3: torch.int32, 4: torch.int64, 5: torch.float16,
    6: torch.float32, 7: torch.float64, 8: torch.complex32, 9: torch.complex64, 10: torch.complex128,
    11: torch.bool, 15: torch.bfloat16, 23: torch.float8_e5m2, 24: torch.float8_e4m3fn,
}  # fmt: skip
"""c10::ScalarType by number (c10/core/ScalarType.h), as a dtype argument may come as an integer."""


class CannotMeasure(RuntimeError):
    """A kernel cannot be run here; the text is the reason."""


def torch_dtype(name: str) -> torch.dtype:
    """Return torch's dtype of that name.  Raises CannotMeasure if this torch has none."""
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise CannotMeasure(f"this torch has no dtype {name}")
    return dtype


def resolve(kernel: KernelDescription) -> torch._ops.OpOverload:
    """Return the operator that *kernel* names; without an overload in the name the first one that fits the
    arguments.

    Raises CannotMeasure if torch does not have it.
    """
    packet = getattr(getattr(torch.ops, kernel.namespace), kernel.name, None)
    if packet is None:
        raise CannotMeasure(f"this torch has no operator {kernel.op}")
    try:
        names = packet.overloads()
    except AttributeError:
        raise CannotMeasure(f"this torch has no operator {kernel.op}") from None
    wanted = kernel.overload or "default"
    if wanted in names:
        overload: torch._ops.OpOverload = getattr(packet, wanted)
        return overload
    for name in names:
        candidate: torch._ops.OpOverload = getattr(packet, name)
        if len(candidate._schema.arguments) == len(kernel.args):
            return candidate
    raise CannotMeasure(f"this torch has no overload {kernel.overload or 'default'} of {kernel.op}")


def needed_bytes(kernel: KernelDescription) -> int:
    """Return the memory that the arguments and results take."""
    return sum(_extent(t) * t.item_bytes for t in kernel.in_tensors + kernel.out_tensors)


def _extent(tensor: TensorMeta) -> int:
    if tensor.numel == 0:
        return 0
    return 1 + sum((n - 1) * stride for n, stride in zip(tensor.sizes, tensor.strides))


def make_tensor(
    meta: TensorMeta, device: str, fill: Callable[[torch.Tensor], Any] | None = None
) -> torch.Tensor:
    """Return a tensor of that dtype, shape and strides; *fill* writes its (flat) storage."""
    dtype = torch_dtype(meta.dtype)
    place = "cpu" if meta.device == "cpu" else device
    flat = torch.empty(max(_extent(meta), 1), dtype=dtype, device=place)
    (fill or _fill_any)(flat)
    return flat.as_strided(meta.sizes, meta.strides)


def _fill_any(flat: torch.Tensor) -> None:
    """Positive numbers below one: good as divisors, probabilities, variances, arguments of logarithms."""
    if flat.dtype == torch.bool:
        flat.copy_(torch.arange(flat.numel(), device=flat.device) % 2 == 0)
    elif flat.is_floating_point() or flat.is_complex():
        try:
            flat.uniform_(0.1, 0.9)
        except (RuntimeError, NotImplementedError):
            flat.copy_(torch.empty(flat.numel(), dtype=torch.float32, device=flat.device).uniform_(0.1, 0.9))
    else:
        flat.copy_(torch.arange(flat.numel(), device=flat.device) % 7 + 1)


def _fill_below(limit: int) -> Callable[[torch.Tensor], Any]:
    """Indices spread over [0, limit): a fixed permutation-like walk, the same on every machine."""
    step = next(p for p in (7919, 104_729, 15_485_863) if limit % p) if limit > 1 else 1

    def fill(flat: torch.Tensor) -> None:
        values = (torch.arange(flat.numel(), device=flat.device) * step) % max(limit, 1)
        flat.copy_(values.to(flat.dtype))

    return fill


def _fill_even(last: int) -> Callable[[torch.Tensor], Any]:
    """Non-decreasing values from 0 to *last* (offsets, boundaries)."""

    def fill(flat: torch.Tensor) -> None:
        values = torch.linspace(0, last, flat.numel(), device=flat.device, dtype=torch.float64)
        flat.copy_(values.to(flat.dtype))

    return fill


def _fill_zero(flat: torch.Tensor) -> None:
    flat.zero_()


def _is_index(meta: TensorMeta) -> bool:
    return meta.dtype in ("int64", "int32", "uint8")


_INDEXED_BY_DIMENSION = frozenset(
    {"index_select", "gather", "scatter", "scatter_add", "scatter_reduce", "index_add", "index_copy",
     "index_fill", "index_reduce", "take_along_dim"}
)  # fmt: skip
_SPECIAL_POSITIVE_DEFINITE = ("cholesky", "inv", "solve", "lu", "det", "ldl", "eigh", "geqrf", "qr")


def _fill_for(
    kernel: KernelDescription, position: int, name: str, meta: TensorMeta
) -> Callable[[torch.Tensor], Any] | None:
    """Return how to fill argument *position*, called *name* in the schema, or None for any value."""
    op = kernel.base_name
    if op == "_linalg_check_errors" or name == "info":
        return _fill_zero
    if not _is_index(meta):
        if name in ("boundaries", "sorted_sequence"):
            return _fill_even(1)
        return None
    first = kernel.tensor(0)
    if name in ("boundaries", "sorted_sequence"):
        return _fill_even(1000)
    if name in ("offsets", "cum_seq_q", "cum_seq_k", "cu_seqlens_q", "cu_seqlens_k", "offs"):
        bag = kernel.tensor(1) if op.startswith("_embedding_bag") else None
        last = bag.numel if bag is not None else 0
        tokens = last or (math.prod(first.sizes[:-2]) if first is not None and len(first.sizes) > 2 else 0)
        return _fill_even(max(tokens - (1 if "embedding" in op else 0), 0))
    if (
        op in ("embedding", "_embedding_bag", "_embedding_bag_forward_only")
        and name == "indices"
        and first is not None
    ):
        return _fill_below(first.sizes[0])
    if op in ("embedding_dense_backward", "_embedding_bag_dense_backward"):
        return _fill_below(int(kernel.value(2 if op == "embedding_dense_backward" else 5, 1)))
    if op in _INDEXED_BY_DIMENSION and name == "index" and first is not None and first.sizes:
        dim = int(kernel.value(1, 0))
        return _fill_below(first.sizes[dim])
    if name == "target":
        scores = kernel.tensor(1 if "backward" in op else 0)
        classes = (
            scores.sizes[1]
            if scores is not None and len(scores.sizes) > 1
            else (scores.numel if scores else 1)
        )
        return _fill_below(classes) if op.startswith(("nll_loss", "multi_margin", "cross_entropy")) else None
    if name == "indices" and "pool" in op:
        data = kernel.tensor(1)
        return _fill_below(math.prod(data.sizes[-2:]) if data is not None else 1)
    if name in ("philox_seed", "philox_offset", "rng_state", "unused", "found_inf"):
        return _fill_zero
    if name == "index" and op in ("take", "put") and first is not None:
        return _fill_below(first.numel)
    return None


def _index_list(kernel: KernelDescription, values: TensorList, device: str) -> list[torch.Tensor | None]:
    """Indices of ``index`` and ``index_put``: one tensor per indexed dimension of the first argument."""
    target = kernel.need_tensor(0)
    made: list[torch.Tensor | None] = []
    dimension = 0
    for item in values.items:
        if item is None:
            made.append(None)
            dimension += 1
        elif item.dtype in ("bool", "uint8"):
            made.append(make_tensor(item, device))
            dimension += len(item.sizes)
        else:
            made.append(make_tensor(item, device, _fill_below(target.sizes[dimension])))
            dimension += 1
    return made


def make_arguments(
    kernel: KernelDescription, schema: torch._C.FunctionSchema, device: str
) -> tuple[list[Any], dict[str, Any]]:
    """Return positional and keyword arguments for *kernel* on *device*.  Raises CannotMeasure."""
    positional: list[Any] = []
    keywords: dict[str, Any] = {}
    for position, parameter in enumerate(schema.arguments):
        if position >= len(kernel.args):
            break
        value = _make(kernel, position, parameter, device)
        if parameter.kwarg_only:
            keywords[parameter.name] = value
        else:
            positional.append(value)
    return positional, keywords


def _make(kernel: KernelDescription, position: int, parameter: Any, device: str) -> Any:
    given = kernel.args[position]
    kind = str(parameter.type)
    if isinstance(given, TensorMeta):
        tensor = make_tensor(given, device, _fill_for(kernel, position, parameter.name, given))
        if (
            position == 0
            and any(mark in kernel.base_name for mark in _SPECIAL_POSITIVE_DEFINITE)
            and "linalg" in kernel.base_name
        ):
            _make_positive_definite(tensor)
        return tensor
    if isinstance(given, TensorList):
        if kernel.base_name in (
            "index",
            "index_put",
            "_index_put_impl",
            "_unsafe_index",
            "_unsafe_index_put",
        ):
            return _index_list(kernel, given, device)
        return [None if item is None else make_tensor(item, device) for item in given.items]
    if isinstance(given, IntList):
        return [bool(i) for i in given.items] if "bool" in kind else list(given.items)
    if parameter.name in ("dtype", "out_dtype", "input_dtype"):
        return _dtype_argument(kernel, given, parameter)
    if parameter.name == "device":
        return torch.device(device) if given is not None or not kernel.in_tensors else None
    if parameter.name in ("layout", "memory_format", "generator", "pin_memory", "non_blocking"):
        return parameter.default_value if parameter.has_default_value() else None
    if isinstance(given, Opaque):
        if kind == "List[bool]":
            return list(kernel.mask(position, len(kernel.outs)))
        if kind in ("List[number]", "List[float]"):
            lists = [a for a in kernel.args if isinstance(a, TensorList)]
            return [1.0] * (len(lists[0].items) if lists else 1)
        return parameter.default_value if parameter.has_default_value() else None
    return given


def _dtype_argument(kernel: KernelDescription, given: Any, parameter: Any) -> torch.dtype | None:
    if given is None and parameter.has_default_value():
        return None
    if parameter.name == "input_dtype":
        return torch_dtype(kernel.in_tensors[0].dtype)
    if isinstance(given, int) and given in _SCALAR_TYPES:
        return _SCALAR_TYPES[given]
    return torch_dtype(kernel.out_tensors[0].dtype) if kernel.out_tensors else None


def _make_positive_definite(tensor: torch.Tensor) -> None:
    if tensor.dim() >= 2 and tensor.shape[-1] == tensor.shape[-2]:
        tensor.mul_(0.1)
        tensor.copy_((tensor + tensor.mT) / 2)
        tensor.diagonal(dim1=-2, dim2=-1).add_(tensor.shape[-1])
