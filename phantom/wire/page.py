"""Writes docs/wire.md: the records as a table, from schema.py."""

from __future__ import annotations

from typing import Any, get_args, get_origin

import msgspec

from phantom.wire import fields, limits, schema
from phantom.wire.records import record_name

PAGE = "docs/wire.md"

_HEAD = """\
# Records of the wire

Generated from `phantom/wire/schema.py` by `python -m phantom.wire.generate`; a test says when it is stale.
Protocol version {protocol}; messages are at most {message} MiB, values at most {value} MiB.

One gRPC stream per rank carries batches of records. A batch is a msgpack array of records, a record a msgpack array:
its number, then its fields in this order. Structures inside a record are arrays too, except the two maps. Nothing is
ever unpickled. Both sides check every field's type and range; a record that breaks them ends the job with status 4 and
names rank, record, field and value, and what the ranks told before stays in the summary.

A **tail** is a point in virtual time that may not be known yet, `max(end(node) + offset_ps, bound_ps)`; node 0 means
none. Node numbers are per rank and increase from 1. `clock` numbers a thread of the rank (0 is the main one); `now_ps`
is that thread's time and a lower bound of all it will still emit. Times are picoseconds, up to 2^61 (26 days).

The simulator forgets a resolved node once a batch with `acked` at or past the batch that carried its RESOLVED has been
processed (first the records of that batch, then the acknowledgement).
"""


def generate() -> str:
    """Returns the text of the page."""
    mib = 1 << 20
    parts = [
        _HEAD.format(
            protocol=limits.PROTOCOL,
            message=limits.MAX_MESSAGE_BYTES // mib,
            value=limits.MAX_VALUE_BYTES // mib,
        )
    ]
    for title, union in (
        ("Rank to simulator", schema.RankRecord),
        ("Simulator to rank", schema.EngineRecord),
    ):
        parts.append(f"## {title}\n")
        for record in get_args(union):
            number = record.__struct_config__.tag
            parts.append(f"### {number} {record_name(record)}\n\n{_paragraph(record)}\n{_table(record)}")
    parts.append("## Structures\n")
    for part in (
        fields.Tail, fields.Payload, fields.Dependency, fields.Side, fields.Account, fields.SettledStep,
        fields.Total, fields.TopKernel, fields.Router, fields.OutOfMemory,
    ):  # fmt: skip
        parts.append(f"### {part.__name__}\n\n{_paragraph(part)}\n{_table(part)}")
    return "\n".join(parts)


def _paragraph(kind: type[msgspec.Struct]) -> str:
    return " ".join((kind.__doc__ or "").split()) + "\n"


def _table(kind: type[msgspec.Struct]) -> str:
    members = msgspec.structs.fields(kind)
    if not members:
        return ""
    rows = "".join(f"| `{field.name}` | {_type(field.type)} |\n" for field in members)
    return f"| field | type, unit, range |\n|---|---|\n{rows}"


def _type(annotation: Any) -> str:
    metas = getattr(annotation, "__metadata__", ())
    plain = annotation.__origin__ if metas else annotation
    text = _plain(plain)
    for meta in metas:
        unit = meta.description
        if unit and unit not in ("text", "bytes" if plain is bytes else ""):
            text += f", {unit}"
        text += _range(meta, plain)
    return text


def _range(meta: msgspec.Meta, plain: Any) -> str:
    if plain is float:
        return ", finite"
    least = meta.ge if meta.ge is not None else meta.min_length
    most = meta.le if meta.le is not None else meta.lt - 1 if meta.lt is not None else meta.max_length
    if most is None:
        return ""
    unit = "" if meta.max_length is None else " long"
    return f", {_number(least or 0)} to {_number(most)}{unit}"


def _number(value: float) -> str:
    value = int(value)
    for base in (value, value + 1, -value):
        if base > 1 << 16 and base & (base - 1) == 0:
            power = f"2^{base.bit_length() - 1}"
            return power if base == value else f"{power} - 1" if base == value + 1 else f"-{power}"
    return f"{value:,}"


def _plain(plain: Any) -> str:
    names = {int: "integer", float: "real", bool: "boolean", str: "text", bytes: "binary", type(None): "nil"}
    if plain in names:
        return names[plain]
    if isinstance(plain, type) and issubclass(plain, fields.Word):
        return " / ".join(f"`{word.value}`" for word in plain)
    if isinstance(plain, type) and issubclass(plain, msgspec.Struct):
        return plain.__name__
    origin, arguments = get_origin(plain), get_args(plain)
    if origin in (list, tuple):
        return f"list of ({_type(arguments[0])})"
    if origin is dict:
        return f"map of text to ({_type(arguments[1])})"
    if arguments and all(isinstance(each, str) for each in arguments):
        return " / ".join(f'"{each}"' for each in arguments)
    return " or ".join(_type(each) for each in arguments)
