"""Record types, payloads and tails as they travel between a rank and the engine.

A record is a msgpack array whose first element is its type. Times are integer picoseconds, sizes bytes.
The full field lists are in README.md of this package.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum
from typing import Any, NamedTuple

import msgpack

PROTOCOL = 1
MAX_MESSAGE_BYTES = 64 * 1024 * 1024
MAX_VALUE_BYTES = 16 * 1024 * 1024

COLLECTIVE_KINDS = (
    "all_reduce",
    "broadcast",
    "reduce",
    "all_gather",
    "reduce_scatter",
    "all_to_all",
    "gather",
    "scatter",
    "barrier",
)
REDUCE_OPS = ("sum", "avg", "max", "min", "product", "band", "bor", "bxor", "premul_sum")
THREAD_KEY, FUTURE_KEY = "phantom/thread/", "phantom/future/"
"""Prefixes of the store keys that threads and a pool's work items post as their last act."""
ABORT_KINDS = ("deadlock", "mismatch", "peer-lost", "shutdown", "protocol")


class RankRecord(IntEnum):
    """Types of the records a rank sends."""

    HELLO = 1
    CLOCK = 2
    CLOCK_END = 3
    NODE = 4
    COLLECTIVE = 5
    COMM = 6
    P2P = 7
    SYNC = 8
    QUERY = 9
    POST = 10
    WAIT = 11
    FORGET = 12
    ADD = 13
    STEP = 14
    STATS = 15
    FAULT = 16
    BYE = 17
    TRANSFER = 18
    SUPPLY = 19
    WAITED = 20


class EngineRecord(IntEnum):
    """Types of the records the engine sends."""

    WELCOME = 1
    ANSWER = 2
    RESOLVED = 3
    VALUE = 4
    ABORT = 5


class Tail(NamedTuple):
    """A point in virtual time, `max(end(node) + offset_ps, bound_ps)`; node 0 means none."""

    node: int
    offset_ps: int
    bound_ps: int


class Payload(NamedTuple):
    """The value of a tensor: little-endian elements of torch dtype `dtype`.

    With `uniform`, `data` holds one element that stands for all `numel`.
    """

    dtype: str
    numel: int
    uniform: bool
    data: bytes


def pack(*records: list[Any]) -> bytes:
    """Returns the records as concatenated msgpack arrays."""
    return b"".join(msgpack.packb(record, use_bin_type=True) for record in records)


def unpack(data: bytes) -> Iterator[list[Any]]:
    """Yields the records of a batch. Raises ValueError (or a msgpack subclass) if the bytes are none."""
    unpacker = msgpack.Unpacker(raw=False, strict_map_key=False, max_buffer_size=max(len(data), 1))
    unpacker.feed(data)
    yield from unpacker
    if unpacker.tell() != len(data):
        raise ValueError(f"batch of {len(data)} bytes ends inside a record at byte {unpacker.tell()}")
