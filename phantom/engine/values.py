"""Combines the small values that collectives carry, as the real collective would.

Contributions of unknown value (None) make every result that depends on them None; so does a result above
16 MiB. `collectives.py` says which kind does what.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from phantom.wire.fields import ELEMENT_BYTES, Payload, ReduceOp
from phantom.wire.limits import MAX_VALUE_BYTES

Array = NDArray[Any]

_NUMPY: dict[str, str] = {
    "float64": "<f8",
    "float32": "<f4",
    "float16": "<f2",
    "bfloat16": "<u2",  # converted by hand: numpy has none
    "int64": "<i8",
    "int32": "<i4",
    "int16": "<i2",
    "int8": "<i1",
    "uint64": "<u8",
    "uint32": "<u4",
    "uint16": "<u2",
    "uint8": "<u1",
    "bool": "<u1",
    "complex64": "<c8",
    "complex128": "<c16",
}
# Other dtypes are moved but never computed with: a value of theirs decides no control flow.


def element_bytes(dtype: str) -> int | None:
    """Bytes per element of a torch dtype, None if values of that dtype are not carried."""
    return ELEMENT_BYTES.get(dtype)


def _widen(payload: Payload) -> Array:
    """Elements in the type that NCCL-like arithmetic is done in (float32 for the 16-bit floats)."""
    raw = np.frombuffer(payload.data, dtype=_NUMPY[payload.dtype])
    if payload.dtype == "bfloat16":
        return (raw.astype(np.uint32) << 16).view(np.float32)
    if payload.dtype == "float16":
        return raw.astype(np.float32)
    return raw


def _narrow(values: Array, dtype: str) -> bytes:
    """Back to little-endian elements of `dtype`, rounding to nearest even."""
    if dtype == "bfloat16":
        bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
        rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
        # Rounding would carry a NaN's mantissa into the exponent.
        rounded = np.where(np.isnan(values), np.uint32(0x7FC0), rounded)
        return rounded.astype("<u2").tobytes()
    if dtype == "bool":
        return (values != 0).astype("<u1").tobytes()
    return values.astype(_NUMPY[dtype]).tobytes()


def _expand(payload: Payload) -> bytes:
    return payload.data * payload.numel if payload.uniform else payload.data


def reduce(payloads: Sequence[Payload], op: ReduceOp, factors: Sequence[float | None]) -> Payload | None:
    """Element-wise reduction of equally long payloads; `factors` scale the inputs of premul_sum."""
    first = payloads[0]
    if first.dtype not in _NUMPY or any(p.dtype != first.dtype or p.numel != first.numel for p in payloads):
        return None
    with np.errstate(all="ignore"):
        total = _reduce_arrays([_widen(p) for p in payloads], op, factors, first.dtype)
    uniform = all(p.uniform for p in payloads)
    if not uniform:
        total = np.broadcast_to(total, (first.numel,))
    return Payload(first.dtype, first.numel, uniform, _narrow(total, first.dtype))


def _reduce_arrays(arrays: list[Array], op: ReduceOp, factors: Sequence[float | None], dtype: str) -> Array:
    if op == "premul_sum":
        arrays = [
            array * array.dtype.type(1.0 if factor is None else factor)
            for array, factor in zip(arrays, factors, strict=True)
        ]
    total = arrays[0]
    if dtype == "bool":
        total = total.astype(np.int64)  # sum of flags means "any", not a count modulo 256
    for array in arrays[1:]:
        if op in ("sum", "avg", "premul_sum"):
            total = total + array
        elif op == "max":
            total = np.maximum(total, array)
        elif op == "min":
            total = np.minimum(total, array)
        elif op == "product":
            total = total * array
        elif op == "band":
            total = total & array
        elif op == "bor":
            total = total | array
        elif op == "bxor":
            total = total ^ array
        else:
            raise ValueError(f"unknown reduction {op!r}")
    if op == "avg":
        if np.issubdtype(total.dtype, np.integer):
            # NCCL divides integers with truncation toward zero.
            total = (np.sign(total) * (np.abs(total) // len(arrays))).astype(total.dtype)
        else:
            total = total / total.dtype.type(len(arrays))
    return total


def concatenate(payloads: Sequence[Payload]) -> Payload | None:
    """One after the other. None if the result is too large or dtypes differ."""
    first = payloads[0]
    width = element_bytes(first.dtype)
    if width is None or any(p.dtype != first.dtype for p in payloads):
        return None
    numel = sum(p.numel for p in payloads)
    if all(p.uniform and p.data == first.data for p in payloads):
        return Payload(first.dtype, numel, True, first.data)
    if numel * width > MAX_VALUE_BYTES:
        return None
    return Payload(first.dtype, numel, False, b"".join(_expand(p) for p in payloads))


def part(payload: Payload, start: int, numel: int) -> Payload | None:
    """Elements start .. start + numel. None if the dtype is not carried or they are not there."""
    width = element_bytes(payload.dtype)
    if width is None or start + numel > payload.numel:
        return None
    if payload.uniform:
        return Payload(payload.dtype, numel, True, payload.data)
    return Payload(payload.dtype, numel, False, payload.data[start * width : (start + numel) * width])


def exchange(
    values: Sequence[Payload | None], in_splits: Sequence[Sequence[int] | None]
) -> list[Payload | None]:
    """What each member of an all_to_all receives; `in_splits`: elements for each member, None for equal
    parts."""
    ranks = len(values)
    results: list[Payload | None] = []
    offsets: list[list[int]] = []
    counts: list[list[int]] = []
    for value, splits in zip(values, in_splits, strict=True):
        numel = value.numel if value is not None else 0
        row = list(splits) if splits else [numel // ranks] * ranks
        counts.append(row)
        starts, position = [], 0
        for count in row:
            starts.append(position)
            position += count
        offsets.append(starts)
    for target in range(ranks):
        pieces: list[Payload] = []
        known = True
        for source, value in enumerate(values):
            if value is None:
                # An unknown sender that sends nothing here does no harm, but only its splits can tell.
                if in_splits[source] and counts[source][target] == 0:
                    continue
                known = False
                break
            piece = part(value, offsets[source][target], counts[source][target])
            if piece is None:
                known = False
                break
            if piece.numel:
                pieces.append(piece)
        if not known:
            results.append(None)
        elif pieces:
            results.append(concatenate(pieces))
        else:
            dtype = next((value.dtype for value in values if value is not None), "")
            results.append(Payload(dtype, 0, False, b"") if dtype else None)
    return results
