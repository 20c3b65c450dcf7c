"""Messages between the simulator and its measuring process: a 4-byte length and msgpack."""

from __future__ import annotations

import struct
from typing import IO, Any

import msgpack


def read_message(stream: IO[bytes]) -> Any | None:
    """Return the next message, or None at the end of the stream."""
    head = _exactly(stream, 4)
    if len(head) < 4:
        return None
    size = struct.unpack("<I", head)[0]
    body = _exactly(stream, size)
    return msgpack.unpackb(body, raw=False) if len(body) == size else None


def _exactly(stream: IO[bytes], size: int) -> bytes:
    """Return *size* bytes, fewer at the end of the stream only (an unbuffered one gives what it has)."""
    parts: list[bytes] = []
    while size > 0 and (part := stream.read(size)):
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def write_message(stream: IO[bytes], message: Any) -> None:
    """Send *message*."""
    body = msgpack.packb(message)
    stream.write(struct.pack("<I", len(body)) + body)
    stream.flush()
