"""The cost request of one launch: `{"op": "triton::NAME", "args", "outs", "sm"}` (docs/architecture.md)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgpack

from interpose.triton.footprint import CountOf, footprint
from interpose.triton.ir import UnreadableIr
from interpose.triton.kernel import Kernel

_DTYPES = {
    "f16": "float16", "bf16": "bfloat16", "f32": "float32", "f64": "float64", "tf32": "tf32", "i8": "int8",
    "f8E4M3FN": "float8_e4m3fn", "f8E5M2": "float8_e5m2",
}  # fmt: skip


def _tensor(tensor: Any) -> list[Any]:
    dtype = str(tensor.dtype).removeprefix("torch.")
    return ["T", dtype, list(tensor.shape), list(tensor.stride()), tensor.device.type]


def _extent_bytes(tensor: Any) -> int:
    """Bytes from the tensor's first element to its last."""
    if tensor.numel() == 0:
        return 0
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride()))
    return int((last + 1) * tensor.element_size())


def tensor_of(argument: Any) -> Any:
    """The tensor behind an argument: itself, a descriptor's base, or None."""
    base = getattr(argument, "base", None)
    if base is not None and hasattr(base, "data_ptr"):
        return base
    return argument if hasattr(argument, "data_ptr") and hasattr(argument, "stride") else None


def _numbers(kernel: Kernel, arguments: Sequence[Any]) -> list[Any]:
    """Values by place in the IR: integers, None for tensors and floating-point numbers."""
    values: list[Any] = []
    for parameter in kernel.parameters:
        argument = arguments[parameter.index]
        if len(parameter.positions) > 1:
            values.extend([None, *argument.shape, *argument.strides])
        else:
            values.append(argument if isinstance(argument, (bool, int)) else None)
    return values


def describe(
    kernel: Kernel, grid: tuple[int, int, int], arguments: Sequence[Any], count_of: CountOf
) -> tuple[bytes, frozenset[int]]:
    """Packs the request; also returns the arguments whose integers the counts depend on.

    `count_of` takes an argument's index. Bytes of each argument are bounded by what the tensor holds:
    programs that read the same element again find it in the L2 cache, which `l2_bytes` counts.
    """
    by_position = {position: p.index for p in kernel.parameters for position in p.positions}
    facts: dict[str, Any] = {
        "grid": list(grid),
        "warps": kernel.warps,
        "stages": kernel.stages,
        "registers": kernel.resources.registers,
        "stack_bytes": kernel.resources.stack_bytes,
        "shared_bytes": kernel.shared_bytes,
        "cluster": kernel.blocks_per_cluster,
    }
    tensors = {p.index: tensor_of(arguments[p.index]) for p in kernel.parameters if p.is_pointer}
    counted: frozenset[int] = frozenset()
    problem = kernel.problem
    if problem is None:
        try:
            counts = footprint(
                kernel.functions, kernel.name, grid=grid, arguments=_numbers(kernel, arguments),
                count_of=lambda position: count_of(by_position[position]),
            )  # fmt: skip
        except UnreadableIr as error:
            problem = f"its IR could not be followed: {error}"
        else:
            counted = frozenset(by_position[position] for position in counts.counted_arguments)
            facts |= _traffic(counts, by_position, tensors)
            facts["dot_flops"] = [[_DTYPES.get(k, k), round(v)] for k, v in sorted(counts.dot_flops.items())]
            facts["instructions"] = round(counts.instructions)
            facts["rounds"] = round(counts.rounds)
            facts["unknown_loops"] = counts.unknown_loops
    if problem is not None:
        facts["problem"] = problem
    request = {
        "op": f"triton::{kernel.name}",
        "sm": facts,
        "args": [_tensor(t) for t in tensors.values() if t is not None],
        "outs": [_tensor(t) for i, t in tensors.items() if t is not None and i in kernel.written],
    }
    return msgpack.packb([request]), counted


def _traffic(counts: Any, by_position: dict[int, int], tensors: dict[int, Any]) -> dict[str, int]:
    read = written = cache = atomic = 0.0
    for position, access in counts.accesses.items():
        tensor = tensors.get(by_position.get(position, -1))
        limit = float("inf") if tensor is None else max(_extent_bytes(tensor), 32)
        read += min(access.read_sector_bytes, limit)
        written += min(access.written_sector_bytes, limit)
        written += min(access.atomic_bytes, limit)
        cache += access.read_sector_bytes + access.written_sector_bytes
        atomic += access.atomic_bytes
    return {
        "read_bytes": round(read), "written_bytes": round(written), "l2_bytes": round(cache),
        "atomic_bytes": round(atomic),
    }  # fmt: skip
