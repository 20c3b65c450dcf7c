"""The names that a module's source defines at its top level, read without running it."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from interpose.standins.surfaces.model import Class, Entry, Enumeration, Function, Imported, Object, Value

_ENUMS = ("Enum", "IntEnum", "Flag", "IntFlag", "StrEnum")
_MISSING = object()


@dataclass
class SourceNames:
    """Names of one module, and the modules whose public names it takes all of (`from x import *`)."""

    names: dict[str, Entry] = field(default_factory=dict)
    stars: list[str] = field(default_factory=list)
    public: list[str] | None = None
    """`__all__`, where it is a plain list."""


def read_source(text: str, module: str, *, is_package: bool) -> SourceNames:
    """Reads a module's source. Names of dunder form are left out, `__all__` aside."""
    found = SourceNames()
    package = module if is_package else module.rpartition(".")[0]
    _read_body(ast.parse(text).body, module, package, found)
    return found


def _read_body(body: list[ast.stmt], module: str, package: str, found: SourceNames) -> None:
    for statement in body:
        if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef)):
            _put(found, statement.name, Function(parameters(statement.args)))
        elif isinstance(statement, ast.ClassDef):
            _put(found, statement.name, _class(statement))
        elif isinstance(statement, (ast.Import, ast.ImportFrom)):
            _read_import(statement, package, found)
        elif isinstance(statement, (ast.Assign, ast.AnnAssign)):
            _read_assignment(statement, module, found)
        elif isinstance(statement, ast.If):
            if not _is_type_checking(statement.test):
                _read_body(statement.body, module, package, found)
                _read_missing(statement.orelse, module, package, found)
        elif isinstance(statement, ast.Try):
            _read_body(statement.body + statement.orelse + statement.finalbody, module, package, found)
            for handler in statement.handlers:
                _read_missing(handler.body, module, package, found)
        elif isinstance(statement, ast.With):
            _read_body(statement.body, module, package, found)


def _read_missing(body: list[ast.stmt], module: str, package: str, found: SourceNames) -> None:
    """The other branch: what it defines in addition; for an import also what stands in its place."""
    other = SourceNames()
    _read_body(body, module, package, other)
    for name, entry in other.names.items():
        known = found.names.get(name)
        if known is None:
            found.names[name] = entry
        elif isinstance(known, Imported) and isinstance(entry, Value):
            found.names[name] = Imported(known.module, known.name, (entry.value,))
        elif isinstance(entry, Function) and isinstance(known, (Value, Object)):
            found.names[name] = entry
    found.stars += other.stars


def _put(found: SourceNames, name: str, entry: Entry) -> None:
    if not (name.startswith("__") and name.endswith("__")):
        found.names[name] = entry


def _read_import(statement: ast.Import | ast.ImportFrom, package: str, found: SourceNames) -> None:
    if isinstance(statement, ast.Import):
        for alias in statement.names:
            target = alias.name if alias.asname else alias.name.partition(".")[0]
            _put(found, alias.asname or target, Imported(target, None))
        return
    base = statement.module or ""
    if statement.level:
        parents = package.split(".")
        parents = parents[: len(parents) - statement.level + 1]
        base = ".".join([*parents, *([base] if base else [])])
    if base == "__future__":
        return
    for alias in statement.names:
        if alias.name == "*":
            found.stars.append(base)
        else:
            _put(found, alias.asname or alias.name, Imported(base, alias.name))


def _read_assignment(statement: ast.Assign | ast.AnnAssign, module: str, found: SourceNames) -> None:
    targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
    if statement.value is None:
        return
    entry = _assigned(statement.value, module, found)
    for name in _target_names(targets):
        if name == "__all__":
            listed = constant(statement.value)
            found.public = list(listed) if isinstance(listed, (list, tuple)) else None
        elif isinstance(entry, Value) and isinstance(found.names.get(name), Imported):
            taken = found.names[name]
            assert isinstance(taken, Imported)
            found.names[name] = Imported(taken.module, taken.name, (entry.value,))
        elif entry != Imported(module, name):
            _put(found, name, entry)


def _target_names(targets: list[Any]) -> Iterator[str]:
    for target in targets:
        if isinstance(target, ast.Name):
            yield target.id
        elif isinstance(target, (ast.Tuple, ast.List)):
            yield from _target_names(list(target.elts))


def _assigned(value: ast.expr, module: str, found: SourceNames) -> Entry:
    literal = constant(value)
    if literal is not _MISSING:
        return Value(literal)
    if isinstance(value, ast.Lambda):
        return Function(parameters(value.args))
    if isinstance(value, ast.Attribute) and value.attr == "apply":
        return Function(None)
    if isinstance(value, ast.Name) and value.id in found.names:
        return Imported(module, value.id)
    if isinstance(value, ast.Call) and any(
        isinstance(part, ast.Name) and isinstance(found.names.get(part.id), Function)
        for part in [*value.args, *(keyword.value for keyword in value.keywords)]
    ):
        return Function(None)  # a decorator that is called: f = wrap(g)
    return Object()


def constant(node: ast.expr) -> Any:
    """The value of a literal that JSON holds too; _MISSING for all else."""
    try:
        value = ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError):
        return _MISSING
    return _plain(value)


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (list, tuple)):
        parts = [_plain(part) for part in value]
        return _MISSING if any(part is _MISSING for part in parts) else parts
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        parts_by_key = {key: _plain(part) for key, part in value.items()}
        return _MISSING if any(part is _MISSING for part in parts_by_key.values()) else parts_by_key
    return _MISSING


def parameters(arguments: ast.arguments) -> tuple[str, ...]:
    """A function's parameters as a surface list writes them."""
    plain = [*arguments.posonlyargs, *arguments.args]
    first_default = len(plain) - len(arguments.defaults)
    out: list[str] = []
    for index, argument in enumerate(plain):
        out.append(argument.arg + ("=" if index >= first_default else ""))
        if arguments.posonlyargs and index == len(arguments.posonlyargs) - 1:
            out.append("/")
    if arguments.vararg:
        out.append("*" + arguments.vararg.arg)
    elif arguments.kwonlyargs:
        out.append("*")
    for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults):
        out.append(argument.arg + ("=" if default is not None else ""))
    if arguments.kwarg:
        out.append("**" + arguments.kwarg.arg)
    return tuple(out)


def _class(node: ast.ClassDef) -> Entry:
    bases = tuple(ast.unparse(base) for base in node.bases)
    kinds = [base for base in bases if base.rpartition(".")[2] in _ENUMS]
    if kinds:
        values = {
            name: constant(statement.value)
            for statement in node.body
            if isinstance(statement, ast.Assign)
            for name in _target_names(statement.targets)
        }
        if values and not any(value is _MISSING or isinstance(value, dict) for value in values.values()):
            return Enumeration(kinds[0].rpartition(".")[2], values)
    members: dict[str, None] = {}
    for statement in node.body:
        if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            members[statement.name] = None
        elif isinstance(statement, (ast.Assign, ast.AnnAssign)):
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            members |= dict.fromkeys(_target_names(targets))
    return Class(bases, tuple(name for name in members if not name.startswith("__")))


def _is_type_checking(test: ast.expr) -> bool:
    return "TYPE_CHECKING" in ast.unparse(test)


def public_names(found: SourceNames, resolve: Callable[[str], SourceNames | None]) -> list[str]:
    """What `from module import *` takes, where the module's own stars are resolved by `resolve`."""
    if found.public is not None:
        return found.public
    names = [name for name in found.names if not name.startswith("_")]
    for star in found.stars:
        other = resolve(star)
        names += [] if other is None else public_names(other, resolve)
    return names
