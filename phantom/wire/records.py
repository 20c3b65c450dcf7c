"""Batches of records: a msgpack array of records, decoded and checked against the schema at once.

A batch that breaks the schema is decoded again, record by record: what stands before the fault counts, and
the error names record, field and value.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple, get_args

import msgpack
import msgspec

from phantom.wire.schema import EngineRecord, RankRecord, Record

_FROM_RANK = msgspec.msgpack.Decoder(list[RankRecord])
_FROM_ENGINE = msgspec.msgpack.Decoder(list[EngineRecord])
_ENCODER = msgspec.msgpack.Encoder()
_ARRAY_32 = b"\xdd"
_SHOWN = 80


class WireError(ValueError):
    """A record breaks the schema; the text names record, field and value."""


class Decoded(NamedTuple):
    """A batch. `error` is the first fault; `records` are those before it."""

    records: list[RankRecord]
    error: WireError | None


def record_name(record: type[Record] | Record) -> str:
    """SYNC, CLOCK_END and so on: how texts and docs name a record."""
    name = (record if isinstance(record, type) else type(record)).__name__
    return "P2P" if name == "P2P" else re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).upper()


BY_NUMBER: dict[int, type[Record]] = {
    kind.__struct_config__.tag: kind  # type: ignore[misc]
    for kind in RankRecord.__args__  # type: ignore[attr-defined]
}
"""The records of a rank by their numbers."""


def encode(record: Record) -> bytes:
    """Returns one record, for `join`."""
    return _ENCODER.encode(record)


def join(encoded: Sequence[bytes]) -> bytes:
    """Returns encoded records as a batch."""
    return b"".join((_ARRAY_32, len(encoded).to_bytes(4, "big"), *encoded))


def pack(*records: Record) -> bytes:
    """Returns the records as a batch."""
    return join([_ENCODER.encode(record) for record in records])


def unpack(data: bytes) -> list[EngineRecord]:
    """Decodes a batch of the simulator. Raises WireError."""
    try:
        return _FROM_ENGINE.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise WireError(f"malformed batch of the simulator: {error}") from None


def decode(data: bytes) -> Decoded:
    """Decodes a batch of a rank. Never raises: a fault is in the result, with the records before it."""
    try:
        return Decoded(_FROM_RANK.decode(data), None)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        return _decode_slowly(data, str(error))


def _decode_slowly(data: bytes, reason: str) -> Decoded:
    """Finds the first fault of a batch that has one."""
    good: list[RankRecord] = []
    unpacker = msgpack.Unpacker(
        raw=False, strict_map_key=False, unicode_errors="replace", max_buffer_size=max(len(data), 1)
    )
    unpacker.feed(data)
    try:
        count = unpacker.read_array_header()
        for _ in range(count):
            start = unpacker.tell()
            plain = unpacker.unpack()
            try:
                good.append(msgspec.msgpack.decode(data[start : unpacker.tell()], type=RankRecord))
            except (msgspec.MsgspecError, UnicodeDecodeError) as error:
                return Decoded(good, WireError(explain(plain, str(error))))
    except msgpack.OutOfData:
        text = f"a batch of {len(data)} bytes ends inside record {len(good) + 1}"
        return Decoded(good, WireError(text))
    except (ValueError, TypeError, msgpack.UnpackException, RecursionError) as error:
        text = f"record {len(good) + 1} of a batch is not msgpack ({error or type(error).__name__})"
        return Decoded(good, WireError(text))
    return Decoded(good, WireError(f"malformed batch: {reason}"))


def explain(record: Any, reason: str) -> str:
    """Says what is wrong with one record.

    `record`: as msgpack gives it; `reason`: msgspec's message, which ends with a path such as `$[3][1]`.
    """
    if not isinstance(record, list) or not record:
        return f"sends {_short(record)} where a record belongs"
    kind = BY_NUMBER.get(record[0]) if isinstance(record[0], int) else None
    if kind is None:
        return f"sends a record of unknown type {_short(record[0])}"
    what, _, path = reason.partition(" - at `$")
    name, value = _follow(record, kind, path)
    field = f" field {name} is {_short(value)}:" if name else ""
    return f"{record_name(kind)}:{field} {what[:1].lower()}{what[1:]}"


def _follow(record: list[Any], kind: type[Record], path: str) -> tuple[str, Any]:
    """Name and value of the field at `path` inside a record."""
    name = ""
    value: Any = record
    structure: Any = kind
    shift = 1  # the record's number comes first
    for index, key in re.findall(r"\[(\d+)\]|\.(\w+)", path):
        if key and isinstance(value, dict):
            name += f".{key}"
            value = value.get(key)
            structure = _field_types(structure).get(key)
        elif index and isinstance(value, list) and int(index) < len(value):
            fields = list(_field_types(structure).items())
            place = int(index) - shift
            value = value[int(index)]
            if 0 <= place < len(fields):
                name += f".{fields[place][0]}"
                structure = fields[place][1]
            else:
                name += f"[{index}]"
        else:
            break
        shift = 0
    return name.lstrip("."), value


def _field_types(annotation: Any) -> dict[str, Any]:
    """Names and types of the fields of the structure in `annotation`; none for a list, whose items may be
    structures."""
    if isinstance(annotation, type) and issubclass(annotation, msgspec.Struct):
        return {field.name: _inner(field.type) for field in msgspec.structs.fields(annotation)}
    return {}


def _inner(annotation: Any) -> Any:
    """The structure that a field is, or None: Annotated and Optional are taken off, lists are not."""
    if isinstance(annotation, type):
        return annotation if issubclass(annotation, msgspec.Struct) else None
    if getattr(annotation, "__origin__", None) in (list, dict, tuple):
        return None
    found = [_inner(inner) for inner in get_args(annotation) if not isinstance(inner, msgspec.Meta)]
    return next((inner for inner in found if inner is not None), None)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}..."
