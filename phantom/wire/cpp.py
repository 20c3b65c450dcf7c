"""Writes the C++ side of the records: interpose/csrc/core/Records.h, from schema.py.

Each record of a rank becomes a struct with `write(Packer&)`, each record of the simulator one with
`read(Unpacker&)`, which checks types and ranges. Maps (the rank's account) become an enumeration of their keys.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from typing import Any, get_args, get_origin

import msgspec

from phantom.wire import fields, limits, schema
from phantom.wire.records import record_name

HEADER = "interpose/csrc/core/Records.h"

_HEAD = """\
// The records of the wire and their fields. Generated from phantom/wire/schema.py by `python -m phantom.wire.generate`.
// clang-format off
#pragma once

#include "core/Msgpack.h"
#include "core/Time.h"

#include <cstdint>
#include <map>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace phantom::wire {

// A value that is packed already, that a SUPPLY will bring, or (empty) that nobody knows.
struct Value {
  std::string_view packed;
  bool later = false;
};

inline void put(Packer& p, bool v) { p.boolean(v); }
inline void put(Packer& p, int64_t v) { p.integer(v); }
inline void put(Packer& p, double v) { p.real(v); }
inline void put(Packer& p, std::string_view v) { p.string(v); }
inline void put(Packer& p, const std::string& v) { p.string(v); }
inline void put(Packer& p, const Value& v) {
  if (v.later) p.string("later");
  else if (v.packed.empty()) p.nil();
  else p.buffer().append(v.packed);
}
// The caller holds the session's mutex: a node that has been resolved by now is folded into the bound.
inline void put(Packer& p, Tail v) {
  v.simplify();
  p.array(3);
  p.integer(v.node ? int64_t(v.node->id) : 0);
  p.integer(v.node ? v.offset_ps : 0);
  p.integer(v.bound_ps);
}
template <typename T>
void put(Packer& p, const std::optional<T>& v);
template <typename T>
void put(Packer& p, const std::vector<T>& v);
template <typename T>
void put(Packer& p, const std::map<std::string, T>& v);

template <typename T>
void put(Packer& p, const std::optional<T>& v) {
  if (v) put(p, *v);
  else p.nil();
}
template <typename T>
void put(Packer& p, const std::vector<T>& v) {
  p.array(v.size());
  for (const T& each : v) put(p, each);
}
template <typename T>
void put(Packer& p, const std::map<std::string, T>& v) {
  p.map(v.size());
  for (const auto& [key, each] : v) {
    p.string(key);
    put(p, each);
  }
}

inline int64_t checked(int64_t v, int64_t least, int64_t most, const char* field) {
  if (v < least || v > most) {
    throw std::runtime_error(std::string("the simulator sent ") + field + " = " + std::to_string(v) + ", out of its range");
  }
  return v;
}
"""


def generate() -> str:
    """Returns the text of the header."""
    parts = [_HEAD]
    parts.append(f"constexpr int64_t kProtocol = {limits.PROTOCOL};\n")
    parts.append(_enumeration("RankRecord", "The numbers of a rank's records.", schema.RankRecord))
    parts.append(_enumeration("EngineRecord", "The numbers of the simulator's records.", schema.EngineRecord))
    for part in _parts():
        parts.append(_structure(part, number=None))
    for record in get_args(schema.RankRecord):
        if record in (schema.Stats, schema.Fault):
            continue
        parts.append(_structure(record, number=record.__struct_config__.tag))
    parts.append(_map_writer(fields.OutOfMemory, number=schema.Fault.__struct_config__.tag))
    parts.append(_account())
    for record in get_args(schema.EngineRecord):
        parts.append(_reader(record))
    parts.append("}  // namespace phantom::wire\n")
    return "\n".join(parts)


def _parts() -> Iterator[type[fields.Part]]:
    """Structures inside a rank's records that C++ writes field by field."""
    yield from (
        fields.Dependency,
        fields.Side,
        fields.SettledStep,
        fields.Total,
        fields.TopKernel,
        fields.Router,
    )


def _comment(text: str | None) -> str:
    words = " ".join((text or "").split()).replace("`", "")
    return "".join(f"// {line}\n" for line in textwrap.wrap(words, 120))


def _enumeration(name: str, comment: str, union: Any) -> str:
    lines = "".join(f"  k{kind.__name__} = {kind.__struct_config__.tag},\n" for kind in get_args(union))
    return f"{_comment(comment)}enum class {name} : int64_t {{\n{lines}}};\n"


def _plain(annotation: Any) -> Any:
    """The annotation without Annotated."""
    while hasattr(annotation, "__metadata__"):
        annotation = annotation.__origin__
    return annotation


def _type(annotation: Any) -> str:
    """The C++ type of a field."""
    annotation = _plain(annotation)
    if annotation == fields.Value:
        return "Value"
    if annotation is fields.Tail:
        return "Tail"
    simple = {bool: "bool", int: "int64_t", float: "double", str: "std::string_view"}
    if annotation in simple:
        return simple[annotation]
    if isinstance(annotation, type) and issubclass(annotation, fields.Word):
        return "std::string_view"
    if isinstance(annotation, type) and issubclass(annotation, msgspec.Struct):
        return annotation.__name__
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is list or (origin is tuple and arguments[-1] is Ellipsis):
        inner = _type(arguments[0])
        return f"std::vector<{'std::string' if inner == 'std::string_view' else inner}>"
    if origin is dict:
        return f"std::map<std::string, {_type(arguments[1])}>"
    if type(None) in arguments:
        (inner,) = (each for each in arguments if each is not type(None))
        if _plain(inner) is fields.Payload:
            return "Value"
        return f"std::optional<{_type(inner)}>"
    raise TypeError(f"no C++ type for {annotation}")


_START = {"bool": " = false", "int64_t": " = 0", "double": " = 0"}


def _declaration(field: Any) -> str:
    kind = _type(field.type)
    return f"  {kind} {field.name}{_START.get(kind, '')};\n"


def _structure(kind: type[msgspec.Struct], *, number: str | int | None) -> str:
    """A struct that writes itself as an array, after its number if it has one."""
    members = msgspec.structs.fields(kind)
    size = len(members) + (number is not None)
    body = "".join(_declaration(field) for field in members)
    first = f"    p.integer({number});\n" if number is not None else ""
    puts = "".join(f"    put(p, {field.name});\n" for field in members)
    free = (
        ""
        if number is not None
        else f"inline void put(Packer& p, const {kind.__name__}& v) {{ v.write(p); }}\n"
    )
    return (
        f"{_comment(kind.__doc__)}struct {kind.__name__} {{\n{body}\n  void write(Packer& p) const {{\n"
        f"    p.array({size});\n{first}{puts}  }}\n}};\n{free}"
    )


def _map_writer(kind: type[msgspec.Struct], *, number: str | int | None) -> str:
    """A record that holds one map with a tag."""
    members = msgspec.structs.fields(kind)
    config = kind.__struct_config__
    body = "".join(_declaration(field) for field in members)
    puts = "".join(f'    p.string("{field.name}");\n    put(p, {field.name});\n' for field in members)
    return (
        f"{_comment(kind.__doc__)}struct {kind.__name__} {{\n{body}\n  void write(Packer& p) const {{\n"
        f"    p.array(2);\n    p.integer({number});\n    p.map({len(members) + 1});\n"
        f'    p.string("{config.tag_field}");\n    p.string("{config.tag}");\n{puts}  }}\n}};\n'
    )


def _account() -> str:
    """The keys of the rank's account."""
    names = [field.name for field in msgspec.structs.fields(fields.Account)]
    entries = "".join(f"  k{_camel(name)},\n" for name in names)
    texts = ", ".join(f'"{name}"' for name in names)
    wrapped = textwrap.fill(texts, 118, initial_indent="    ", subsequent_indent="    ")
    return (
        f"{_comment(fields.Account.__doc__)}enum class AccountField : size_t {{\n{entries}}};\n\n"
        f"inline constexpr const char* kAccountFields[] = {{\n{wrapped}}};\n"
    )


def _camel(name: str) -> str:
    return "".join(word.capitalize() for word in name.split("_"))


def _reader(record: type[msgspec.Struct]) -> str:
    """A record of the simulator. The caller has read the array's head and the number."""
    members = msgspec.structs.fields(record)
    name = record.__name__
    body, reads = "", ""
    for field in members:
        plain = _plain(field.type)
        label = f"{record_name(record)}.{field.name}"  # type: ignore[arg-type]
        least, most = _range(field.type)
        if plain is int:
            body += f"  int64_t {field.name} = 0;\n"
            reads += f'    out.{field.name} = checked(u.integer(), {least}, {most}, "{label}");\n'
        elif plain is str or (isinstance(plain, type) and issubclass(plain, fields.Word)):
            body += f"  std::string {field.name};\n"
            reads += f"    out.{field.name} = std::string(u.bytes());\n"
        elif get_origin(plain) is list:
            least, most = _range(get_args(plain)[0])
            body += f"  std::vector<int64_t> {field.name};\n"
            reads += (
                f"    for (size_t n = u.array(); n > 0; --n) "
                f'out.{field.name}.push_back(checked(u.integer(), {least}, {most}, "{label}"));\n'
            )
        else:
            body += f"  std::optional<std::string> {field.name};   // a packed payload\n"
            reads += f"    if (u.isNil()) u.nil();\n    else out.{field.name} = std::string(u.raw());\n"
    count = len(members)
    return (
        f"{_comment(record.__doc__)}struct {name} {{\n{body}\n"
        f"  static {name} read(Unpacker& u, size_t fields) {{\n"
        f'    if (fields != {count}) throw std::runtime_error("the simulator sent {record_name(record)} with " + '  # type: ignore[arg-type]
        f'std::to_string(fields) + " fields");\n'
        f"    {name} out;\n{reads}    return out;\n  }}\n}};\n"
    )


def _range(annotation: Any) -> tuple[str, str]:
    """Least and largest value of an integer, as C++."""
    least, most = -(2**63), 2**63 - 1
    for meta in getattr(annotation, "__metadata__", ()):
        least = meta.ge if meta.ge is not None else least
        most = meta.le if meta.le is not None else most
        most = meta.lt - 1 if meta.lt is not None else most
    return ("INT64_MIN" if least == -(2**63) else str(least)), (
        "INT64_MAX" if most == 2**63 - 1 else f"{most}LL"
    )
