"""Values while Triton IR is being followed: integers and addresses are computed, floating point is not."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from interpose.triton.ir import Type

LARGEST_ARRAY = 1 << 18
"""Tiles with more elements than this are not followed element by element."""


@dataclass(frozen=True)
class Value:
    """One SSA value.

    `data` is a number, an integer array of the type's shape (or one that broadcasts to it), or None where it
    is not known. For addresses it counts elements from the start of the tensor that argument `base` names.
    """

    type: Type
    data: Any = None
    base: int | None = None


def unknown(kind: Type, base: int | None = None) -> Value:
    """A value of which only the type (and what it points into) is known."""
    return Value(kind, None, base)


def _divide(a: Any, b: Any) -> Any:
    if isinstance(a, float) or isinstance(b, float):
        return a / b
    return (
        np.fix(a / b).astype(np.int64)
        if isinstance(a, np.ndarray) or isinstance(b, np.ndarray)
        else int(a / b)
    )


def _remainder(a: Any, b: Any) -> Any:
    return a - _divide(a, b) * b


_ARITHMETIC: dict[str, Callable[[Any, Any], Any]] = {
    "arith.addi": operator.add,
    "arith.subi": operator.sub,
    "arith.muli": operator.mul,
    "arith.divsi": _divide,
    "arith.divui": _divide,
    "arith.floordivsi": operator.floordiv,
    "arith.ceildivsi": lambda a, b: -(-a // b),
    "arith.ceildivui": lambda a, b: -(-a // b),
    "arith.remsi": _remainder,
    "arith.remui": _remainder,
    "arith.minsi": np.minimum,
    "arith.minui": np.minimum,
    "arith.maxsi": np.maximum,
    "arith.maxui": np.maximum,
    "arith.andi": lambda a, b: a & b,
    "arith.ori": lambda a, b: a | b,
    "arith.xori": lambda a, b: a ^ b,
    "arith.shli": lambda a, b: a << b,
    "arith.shrsi": lambda a, b: a >> b,
    "arith.shrui": lambda a, b: a >> b,
}
_COMPARISONS: dict[str, Callable[[Any, Any], Any]] = {
    "eq": operator.eq, "ne": operator.ne, "slt": operator.lt, "sle": operator.le, "sgt": operator.gt,
    "sge": operator.ge, "ult": operator.lt, "ule": operator.le, "ugt": operator.gt, "uge": operator.ge,
}  # fmt: skip


def arithmetic(name: str, a: Any, b: Any) -> Any:
    """The result of an integer operation on `data`; None where it cannot be told."""
    if a is None or b is None:
        # A mask is off where one known side of a conjunction is.
        if name == "arith.andi":
            for side in (a, b):
                if isinstance(side, (bool, np.bool_)) and not side:
                    return False
            return (
                a
                if isinstance(a, np.ndarray) and a.dtype == bool
                else b
                if isinstance(b, np.ndarray) and b.dtype == bool
                else None
            )
        if name == "arith.muli" and (_is_zero(a) or _is_zero(b)):
            return 0
        return None
    try:
        return _ARITHMETIC[name](a, b)
    except (KeyError, TypeError, ZeroDivisionError, OverflowError, ValueError):
        return None


def _is_zero(data: Any) -> bool:
    return isinstance(data, int) and data == 0


def compare(predicate: str, a: Any, b: Any) -> Any:
    """The result of an integer comparison on `data`; None where it cannot be told."""
    if a is None or b is None or predicate not in _COMPARISONS:
        return None
    return _COMPARISONS[predicate](a, b)


def expand(data: Any, axis: int) -> Any:
    """`data` with a dimension of one at `axis`."""
    return np.expand_dims(data, axis) if isinstance(data, np.ndarray) else data


def share_on(mask: Any) -> float:
    """Which share of the elements a mask leaves on; everything where it is not known."""
    if mask is None:
        return 1.0
    return float(np.mean(mask)) if isinstance(mask, np.ndarray) else float(bool(mask))


def sector_bytes(offsets: Any, mask: Any, kind: Type) -> tuple[float, float]:
    """(bytes of the elements, bytes of the 32-byte sectors they lie in) that one access moves.

    `kind` is the type of the tile of addresses. Where the addresses are not known the elements are taken to
    be neighbours. GPUs fetch memory in sectors of 32 bytes (CUDA C++ Best Practices Guide, "Coalesced Access
    to Global Memory").
    """
    item = kind.item_bytes
    used = kind.numel * share_on(mask) * item
    if used == 0:
        return 0.0, 0.0
    if not isinstance(offsets, np.ndarray) or kind.numel > LARGEST_ARRAY:
        if offsets is not None and not isinstance(offsets, np.ndarray):
            return item, 32.0  # one element for all
        return used, -(-used // 32) * 32
    where = np.broadcast_to(offsets, kind.shape)
    if isinstance(mask, np.ndarray):
        where = where[np.broadcast_to(mask, kind.shape)]
    where = where.ravel()
    sectors = (where.astype(np.int64) * int(max(item, 1))) >> 5
    if sectors.size > 1:
        steps = np.diff(sectors)
        if (steps >= 0).all():
            distinct = int(np.count_nonzero(steps)) + 1
        else:
            distinct = int(np.unique(sectors).size)
    else:
        distinct = int(sectors.size)
    elements = min(used, distinct * 32.0)
    return elements, distinct * 32.0
