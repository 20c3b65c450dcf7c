"""The few protobuf wire primitives that writing a trace needs (https://protobuf.dev/programming-guides/encoding/).

A timeline holds millions of small messages whose constant parts are encoded once; going through message
objects would take ten times as long.
"""

from __future__ import annotations

import struct


def varint(value: int) -> bytes:
    """An unsigned integer; negative ones as 64-bit two's complement."""
    if value < 0:
        value &= (1 << 64) - 1
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def integer(field: int, value: int) -> bytes:
    """Field of type int32/int64/uint32/uint64/bool/enum."""
    return varint(field << 3) + varint(value)


def double(field: int, value: float) -> bytes:
    """Field of type double."""
    return varint(field << 3 | 1) + struct.pack("<d", value)


def fixed64(field: int, value: int) -> bytes:
    """Field of type fixed64."""
    return varint(field << 3 | 1) + struct.pack("<Q", value)


def message(field: int, *parts: bytes) -> bytes:
    """Field of a message type, from its encoded fields."""
    body = b"".join(parts)
    return varint(field << 3 | 2) + varint(len(body)) + body


def text(field: int, value: str) -> bytes:
    """Field of type string."""
    return message(field, value.encode())
