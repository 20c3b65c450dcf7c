"""The types of a library's public surface, and how its list is read.

A list is JSON: `{"library", "version", "source", "modules": {module: {name: entry}}}`. An entry is an array
whose first element is its kind:

    ["function", [parameter, ...]]     a parameter is written `name`, `name=` (has a default), `*name`,
                                       `**name`, `/` or `*`; no array: the parameters are not known
    ["class", [base, ...], [member, ...]]
    ["enum", base, {member: value}]
    ["import", "module", "name" or null, otherwise]    what the module took from another one
    ["value", constant]
    ["object"]                         something that only running the library's code would make
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

LISTS = Path(__file__).with_name("lists")
PACKAGE = ""
"""Key of a module's entries that says that it is a package."""


@dataclass(frozen=True)
class Function:
    """Something to call; `parameters` is None where the list does not know them."""

    parameters: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Class:
    """A class with its bases and public members, by name."""

    bases: tuple[str, ...] = ()
    members: tuple[str, ...] = ()


@dataclass(frozen=True)
class Enumeration:
    """An enumeration of constants; `base` is Enum, IntEnum, ..."""

    base: str
    members: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Imported:
    """A name taken from another module; `name` None is the module. `otherwise`: its value where the import
    fails and the library goes on; a list of one value, empty where it does not."""

    module: str
    name: str | None
    otherwise: tuple[Any, ...] = ()


@dataclass(frozen=True)
class Value:
    """A constant."""

    value: Any


@dataclass(frozen=True)
class Object:
    """Something that only the library's own code could make."""


Entry = Function | Class | Enumeration | Imported | Value | Object


@dataclass(frozen=True)
class ModuleSurface:
    """The names of one module."""

    is_package: bool
    names: dict[str, Entry]


@dataclass(frozen=True)
class Surface:
    """A library's modules, and where its list comes from."""

    library: str
    version: str
    source: str
    modules: dict[str, ModuleSurface]


def pack(entry: Entry) -> list[Any]:
    """An entry as it is written."""
    if isinstance(entry, Function):
        return ["function"] if entry.parameters is None else ["function", list(entry.parameters)]
    if isinstance(entry, Class):
        return ["class", list(entry.bases), list(entry.members)]
    if isinstance(entry, Enumeration):
        return ["enum", entry.base, entry.members]
    if isinstance(entry, Imported):
        return ["import", entry.module, entry.name, *entry.otherwise]
    return ["value", entry.value] if isinstance(entry, Value) else ["object"]


def unpack(packed: list[Any]) -> Entry:
    """An entry from how it is written. Raises ValueError for an unknown kind."""
    kind, *rest = packed
    if kind == "function":
        return Function(tuple(rest[0]) if rest else None)
    if kind == "class":
        return Class(tuple(rest[0]), tuple(rest[1]))
    if kind == "enum":
        return Enumeration(rest[0], rest[1])
    if kind == "import":
        return Imported(rest[0], rest[1], tuple(rest[2:]))
    if kind == "value":
        return Value(rest[0])
    if kind == "object":
        return Object()
    raise ValueError(f"surface list: unknown kind {kind!r}")


@cache
def load(library: str) -> Surface:
    """The list of a library of the registry. Raises FileNotFoundError where it has none."""
    content = json.loads((LISTS / f"{library}.json").read_text())
    modules = {
        name: ModuleSurface(
            is_package=PACKAGE in entries,
            names={key: unpack(entry) for key, entry in entries.items() if key != PACKAGE},
        )
        for name, entries in content["modules"].items()
    }
    return Surface(content["library"], content["version"], content["source"], modules)


def dump(surface: Surface) -> str:
    """The list's text: one line per module, in order."""
    head = {"library": surface.library, "version": surface.version, "source": surface.source}
    lines = []
    for name, module in sorted(surface.modules.items()):
        entries: dict[str, Any] = {PACKAGE: ["package"]} if module.is_package else {}
        entries |= {key: pack(entry) for key, entry in sorted(module.names.items())}
        lines.append(f"{json.dumps(name)}: {json.dumps(entries, separators=(',', ':'))}")
    return json.dumps(head)[:-1] + ', "modules": {\n' + ",\n".join(lines) + "\n}}\n"
