"""Messages between the simulator and its measuring process: a 4-byte length and msgpack."""

from __future__ import annotations

import struct
from typing import IO, Any

import msgpack


def read_message(stream: IO[bytes]) -> Any | None:
    """Return the next message, or None at the end of the stream."""
    head = stream.read(4)
    if len(head) < 4:
        return None
    size = struct.unpack("<I", head)[0]
    body = stream.read(size)
    return msgpack.unpackb(body, raw=False) if len(body) == size else None


def write_message(stream: IO[bytes], message: Any) -> None:
    """Send *message*."""
    body = msgpack.packb(message)
    stream.write(struct.pack("<I", len(body)) + body)
    stream.flush()
