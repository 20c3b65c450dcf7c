"""What a cost request says about one dispatched operator: its name, its arguments' metadata, its outputs.

The wire form (msgpack of plain lists) is fixed by the service definition; this module turns it into frozen
values and back.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

from phantom.kernels.request.dtypes import item_bytes


class KernelFormatError(ValueError):
    """A cost request is not in the agreed form; the text says where."""


@dataclass(frozen=True)
class TensorMeta:
    """Metadata of one tensor: sizes and strides in elements, device type ``cuda`` or ``cpu``."""

    dtype: str
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    device: str = "cuda"

    @cached_property
    def numel(self) -> int:
        return math.prod(self.sizes)

    @cached_property
    def item_bytes(self) -> int:
        return item_bytes(self.dtype)

    @cached_property
    def logical_bytes(self) -> int:
        """Bytes of all elements, an expanded (stride 0) dimension counted in full."""
        return self.numel * self.item_bytes

    @cached_property
    def stored_bytes(self) -> int:
        """Bytes of the distinct elements: an expanded (stride 0) dimension counts once."""
        if len(self.strides) != len(self.sizes):  # not strided (sparse): no strides were sent
            return self.logical_bytes
        distinct = math.prod(n for n, stride in zip(self.sizes, self.strides) if stride != 0 or n == 0)
        return distinct * self.item_bytes

    @cached_property
    def layout(self) -> str:
        """Return the stride class: the part of the strides that changes a kernel's speed.

        ``c`` contiguous, ``t`` contiguous but for the last two dimensions swapped, ``nhwc`` channels last,
        ``eI.J`` expanded in dimensions I and J, ``p`` dense with outer dimensions permuted (unit inner
        stride), ``d``
        dense in another order, ``s`` rows apart (unit inner stride), ``g`` anything else.
        """
        sizes, strides = self.sizes, self.strides
        if self.numel == 0 or len(strides) != len(sizes):
            return "c"
        expanded = [i for i, (n, stride) in enumerate(zip(sizes, strides)) if stride == 0 and n > 1]
        if expanded:
            return "e" + ".".join(map(str, expanded))
        if _is_dense_in_order(sizes, strides, range(len(sizes))):
            return "c"
        rank = len(sizes)
        if rank >= 2 and _is_dense_in_order(sizes, strides, [*range(rank - 2), rank - 1, rank - 2]):
            return "t"
        if rank in (4, 5) and _is_dense_in_order(sizes, strides, [0, *range(2, rank), 1]):
            return "nhwc"
        order = sorted(range(rank), key=lambda i: (-strides[i], i))
        inner = [stride for n, stride in zip(sizes, strides) if n > 1]
        unit = bool(inner) and inner[-1] == 1
        if _is_dense_in_order(sizes, strides, order):
            return "p" if unit else "d"
        return "s" if unit else "g"

    def __len__(self) -> int:
        return len(self.sizes)


def _is_dense_in_order(sizes: Sequence[int], strides: Sequence[int], order: Sequence[int]) -> bool:
    expected = 1
    for i in reversed(order):
        if sizes[i] != 1:
            if strides[i] != expected:
                return False
            expected *= sizes[i]
    return True


@dataclass(frozen=True)
class TensorList:
    """A list argument of tensors; None stands for an absent optional tensor."""

    items: tuple[TensorMeta | None, ...]

    def tensors(self) -> tuple[TensorMeta, ...]:
        return tuple(item for item in self.items if item is not None)


@dataclass(frozen=True)
class IntList:
    """A list argument of integers (or of bools, as 0 and 1)."""

    items: tuple[int, ...]


@dataclass(frozen=True)
class Opaque:
    """An argument that costs do not depend on (generator, dtype, layout, device, memory format), as text."""

    text: str


Argument: TypeAlias = TensorMeta | TensorList | IntList | Opaque | int | float | bool | str | None


@dataclass(frozen=True)
class KernelDescription:
    """One dispatched operator: ``op`` is ``namespace::name`` or ``namespace::name.overload``, args in
    schema order.

    *extra* carries what the sender knows besides, as sorted pairs (``pinned`` for host copies).
    """

    op: str
    args: tuple[Argument, ...] = ()
    outs: tuple[TensorMeta | TensorList | None, ...] = ()
    extra: tuple[tuple[str, Any], ...] = ()

    @cached_property
    def namespace(self) -> str:
        return self.op.partition("::")[0] if "::" in self.op else "aten"

    @cached_property
    def name(self) -> str:
        """The operator's name without namespace and overload."""
        return self.op.rpartition("::")[2].partition(".")[0]

    @cached_property
    def overload(self) -> str:
        return self.op.rpartition("::")[2].partition(".")[2]

    @cached_property
    def base_name(self) -> str:
        """The name without the underscore that marks the in-place form."""
        name = self.name
        return name[:-1] if name.endswith("_") and not name.endswith("__") else name

    @property
    def is_inplace(self) -> bool:
        return self.name != self.base_name

    @cached_property
    def is_out_variant(self) -> bool:
        """Say whether the trailing arguments are the outputs (``add.out``, ``sort.values_stable``)."""
        overload = self.overload
        return overload.endswith("out") or overload in (
            "grad_input", "values", "values_stable", "dim_values", "dim_max", "dim_min", "mode", "U", "L",
            "X", "Q", "e", "n", "output",
            "names_dim_max", "names_dim_min", "a",
        )  # fmt: skip

    @cached_property
    def out_tensors(self) -> tuple[TensorMeta, ...]:
        return tuple(_tensors(self.outs))

    @cached_property
    def input_arguments(self) -> tuple[Argument, ...]:
        """The arguments without the outputs that an ``out=`` form repeats at its end."""
        if not self.is_out_variant:
            return self.args
        left = sum(1 for out in self.outs if out is not None) or 1
        args = list(self.args)
        while left and args:
            if isinstance(args.pop(), (TensorMeta, TensorList)):
                left -= 1
        return tuple(args)

    @cached_property
    def in_tensors(self) -> tuple[TensorMeta, ...]:
        return tuple(_tensors(self.input_arguments))

    def tensor(self, index: int) -> TensorMeta | None:
        """Return argument *index* if it is a tensor, else None."""
        value = self.args[index] if -len(self.args) <= index < len(self.args) else None
        return value if isinstance(value, TensorMeta) else None

    def need_tensor(self, index: int) -> TensorMeta:
        """Return argument *index*; raises KernelFormatError if it is not a tensor."""
        value = self.tensor(index)
        if value is None:
            raise KernelFormatError(
                f"{self.op}: argument {index} should be a tensor; arguments: {self.args!r}"
            )
        return value

    def value(self, index: int, default: Any = None) -> Any:
        """Return the plain value of argument *index*; *default* where absent or None; int lists as tuples."""
        if not -len(self.args) <= index < len(self.args):
            return default
        value = self.args[index]
        if isinstance(value, IntList):
            return value.items
        return default if value is None else value

    def mask(self, index: int, count: int) -> tuple[bool, ...]:
        """Return an output mask of *count* entries: argument *index*, or which outputs there are."""
        value = self.value(index)
        if isinstance(value, tuple) and len(value) == count:
            return tuple(bool(v) for v in value)
        if not self.outs:
            return (True,) * count
        present = [isinstance(out, (TensorMeta, TensorList)) for out in self.outs]
        return tuple((present + [False] * count)[:count])

    def flag(self, name: str, default: Any = None) -> Any:
        """Return an entry of *extra*."""
        return dict(self.extra).get(name, default)


def _tensors(values: Sequence[Any]) -> Iterator[TensorMeta]:
    for value in values:
        if isinstance(value, TensorMeta):
            yield value
        elif isinstance(value, TensorList):
            yield from value.tensors()


def parse_kernel(wire: Mapping[str, Any]) -> KernelDescription:
    """Read one kernel of a cost request (plain lists, as msgpack gives them).

    Raises KernelFormatError naming the operator and the argument that is not in the agreed form.
    """
    if not isinstance(wire, Mapping):
        raise KernelFormatError(f"a kernel is a map with op, args and outs, not {wire!r}")
    op = wire.get("op")
    if not isinstance(op, str) or not op:
        raise KernelFormatError(f"kernel without an operator name: {wire!r}")
    args = tuple(_parse(value, f"{op}: argument {i}") for i, value in enumerate(wire.get("args") or ()))
    outs: list[TensorMeta | TensorList | None] = []
    for i, value in enumerate(wire.get("outs") or ()):
        out = _parse(value, f"{op}: output {i}")
        outs.append(out if isinstance(out, (TensorMeta, TensorList)) else None)
    extra = tuple(sorted((str(key), _plain(value)) for key, value in (wire.get("sm") or {}).items()))
    return KernelDescription(op, args, tuple(outs), extra)


def _plain(value: Any) -> Any:
    return tuple(_plain(item) for item in value) if isinstance(value, (list, tuple)) else value


_MOST_DIMENSIONS = 64
"""As in PyTorch's TensorIterator (aten/src/ATen/TensorIterator.h)."""

_LARGEST_SIZE = 1 << 53


def _parse(value: Any, where: str) -> Argument:
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if not isinstance(value, (list, tuple)) or not value:
        if isinstance(value, (list, tuple)):
            return IntList(())
        raise KernelFormatError(f"{where}: cannot read {value!r}")
    tag = value[0]
    try:
        if tag == "T":
            _, dtype, sizes, strides, device = value
            if len(sizes) > _MOST_DIMENSIONS or len(strides) > _MOST_DIMENSIONS:
                raise ValueError(f"a tensor has at most {_MOST_DIMENSIONS} dimensions")
            meta = TensorMeta(str(dtype), tuple(map(int, sizes)), tuple(map(int, strides)), str(device))
            if not all(0 <= size <= _LARGEST_SIZE for size in meta.sizes):
                raise ValueError("a size is negative or impossibly large")
            return meta
        if tag == "L":
            items = [_parse(item, where) for item in value[1]]
            return TensorList(tuple(item if isinstance(item, TensorMeta) else None for item in items))
        if tag == "I":
            return IntList(tuple(map(int, value[1])))
        if tag == "?":
            return Opaque(str(value[1]) if len(value) > 1 else "")
        if all(isinstance(item, (bool, int)) for item in value):
            return IntList(tuple(map(int, value)))
        if all(isinstance(item, (bool, int, float)) for item in value):
            return Opaque(f"{len(value)} scalars")
    except (TypeError, ValueError) as error:
        raise KernelFormatError(f"{where}: cannot read {str(value)[:200]}: {error}") from None
    raise KernelFormatError(f"{where}: cannot read {value!r}")


def encode_kernel(kernel: KernelDescription) -> dict[str, Any]:
    """Return the wire form of *kernel*: the inverse of :func:`parse_kernel`."""
    wire: dict[str, Any] = {
        "op": kernel.op,
        "args": [_encode(value) for value in kernel.args],
        "outs": [_encode(value) for value in kernel.outs],
    }
    if kernel.extra:
        wire["sm"] = dict(kernel.extra)
    return wire


def _encode(value: Argument) -> Any:
    if isinstance(value, TensorMeta):
        return ["T", value.dtype, list(value.sizes), list(value.strides), value.device]
    if isinstance(value, TensorList):
        return ["L", [_encode(item) for item in value.items]]
    if isinstance(value, IntList):
        return ["I", list(value.items)]
    if isinstance(value, Opaque):
        return ["?", value.text]
    return value


def contiguous(dtype: str, *sizes: int, device: str = "cuda") -> TensorMeta:
    """Return the metadata of a contiguous tensor (for tests, tools and other predictors)."""
    strides: list[int] = []
    step = 1
    for n in reversed(sizes):
        strides.append(step)
        step *= max(n, 1)
    return TensorMeta(dtype, tuple(sizes), tuple(reversed(strides)), device)


def transposed(dtype: str, rows: int, columns: int, device: str = "cuda") -> TensorMeta:
    """Return the metadata of a [rows, columns] view of a contiguous [columns, rows] tensor."""
    return TensorMeta(dtype, (rows, columns), (1, rows), device)
