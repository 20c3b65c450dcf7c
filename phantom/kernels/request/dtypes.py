"""Element sizes and peak classes of torch's dtypes, by name (no torch import.

The simulator does not need it).
"""

from __future__ import annotations

ITEM_BYTES: dict[str, float] = {
    "float64": 8, "float32": 4, "float16": 2, "bfloat16": 2,
    "float8_e4m3fn": 1, "float8_e5m2": 1, "float8_e4m3fnuz": 1, "float8_e5m2fnuz": 1, "float8_e8m0fnu": 1,
    "float4_e2m1fn_x2": 1,
    "complex32": 4, "complex64": 8, "complex128": 16,
    "int64": 8, "int32": 4, "int16": 2, "int8": 1, "uint8": 1, "uint16": 2, "uint32": 4, "uint64": 8,
    "bool": 1,
    "qint8": 1, "quint8": 1, "qint32": 4, "quint4x2": 1, "quint2x4": 1, "bits8": 1, "bits16": 2,
}  # fmt: skip

_SHORT: dict[str, str] = {
    "float64": "f64", "float32": "f32", "float16": "f16", "bfloat16": "bf16",
    "float8_e4m3fn": "e4m3", "float8_e5m2": "e5m2", "float4_e2m1fn_x2": "e2m1x2",
    "complex32": "c32", "complex64": "c64", "complex128": "c128",
    "int64": "i64", "int32": "i32", "int16": "i16", "int8": "i8",
    "uint8": "u8", "uint16": "u16", "uint32": "u32", "uint64": "u64", "bool": "b1",
}  # fmt: skip


def item_bytes(dtype: str) -> int:
    """Return the bytes of one element.  Raises ValueError for a name that torch does not have."""
    try:
        return int(ITEM_BYTES[dtype] if dtype in ITEM_BYTES else ITEM_BYTES[dtype.lower()])
    except KeyError:
        raise ValueError(f"unknown dtype {dtype!r}; known: {', '.join(sorted(ITEM_BYTES))}") from None


def short_name(dtype: str) -> str:
    """Return the short form that keys use, such as ``bf16``; names without one are kept."""
    return _SHORT.get(dtype, dtype)


def math_class(dtype: str) -> str:
    """Return the peak-rate class of a matrix product in *dtype*: fp64, fp32, fp16, bf16, fp8, fp4 or int8.

    Complex products count four real ones and run at the rate of the real type.  Integer types without tensor
    cores (int64 and the like) run at the fp32 rate.
    """
    if dtype.startswith("float8"):
        return "fp8"
    if dtype.startswith("float4"):
        return "fp4"
    table = {
        "float64": "fp64", "complex128": "fp64", "float16": "fp16", "complex32": "fp16", "bfloat16": "bf16",
        "int8": "int8", "uint8": "int8", "qint8": "int8", "quint8": "int8",
    }  # fmt: skip
    return table.get(dtype, "fp32")


def is_complex(dtype: str) -> bool:
    """Say whether *dtype* is a complex type."""
    return dtype.startswith("complex")
