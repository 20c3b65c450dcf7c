"""Makes what a surface list names: importable, and an explained error once it is used.

Constants and what a module took from elsewhere are the things themselves. Functions raise NotCovered when
they are called, classes when they are made; both can be annotated with, inherited from, compared and probed.
"""

from __future__ import annotations

import copy
import enum
import importlib
import importlib.util
import inspect
import sys
from abc import ABCMeta
from collections.abc import Callable
from typing import Any, NoReturn

from interpose.standins.surfaces import model
from interpose.standins.surfaces.model import Class, Entry, Enumeration, Function, Imported, Surface, Value

Refusal = Callable[[str, str], Exception]
"""Makes the error for (module, name)."""


def make(surface: Surface, module: str, name: str, entry: Entry, refusal: Refusal) -> Any:
    """The object that `module.name` is. Raises ImportError where it was taken from a module that is not
    there."""
    if isinstance(entry, Value):
        return copy.deepcopy(entry.value)
    if isinstance(entry, Function):
        return refused_function(module, name, entry, refusal)
    if isinstance(entry, Class):
        return refused_class(module, name, entry.members, refusal)
    if isinstance(entry, Enumeration):
        kind: Any = getattr(enum, entry.base)
        return kind(name, entry.members, module=module)
    if isinstance(entry, Imported):
        return _imported(surface, module, name, entry, refusal)
    return RefusedObject(module, name, refusal)


def _imported(surface: Surface, module: str, name: str, entry: Imported, refusal: Refusal) -> Any:
    try:
        source = importlib.import_module(entry.module)
    except ImportError:
        if entry.otherwise:
            return entry.otherwise[0]
        raise
    if entry.name is None:
        return source
    if entry.name in vars(source):
        return vars(source)[entry.name]
    inside = f"{entry.module}.{entry.name}"
    if inside in surface.modules or (entry.module not in surface.modules and _is_module(inside)):
        return importlib.import_module(inside)
    if not hasattr(source, entry.name):
        if entry.otherwise:
            return entry.otherwise[0]
        if entry.module in surface.modules:  # made when the library's code runs, or compiled
            return RefusedObject(module, name, refusal)
        raise ImportError(
            f"cannot import name {entry.name!r} from {entry.module!r} (for {module})", name=entry.module
        )
    return getattr(source, entry.name)


def _is_module(name: str) -> bool:
    if name in sys.modules:
        return True
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False


def refused_function(module: str, name: str, entry: Function, refusal: Refusal) -> Any:
    """A function of the library's name and parameters that raises when it is called."""
    short = name.rpartition(".")[2]

    def refuse(*_: Any, **__: Any) -> NoReturn:
        raise refusal(module, name)

    refuse.__name__, refuse.__qualname__, refuse.__module__ = short, name, module
    refuse.__doc__ = f"Not covered by phantom's stand-in: {module}.{name}."
    if entry.parameters is not None:
        refuse.__signature__ = signature(entry.parameters)  # type: ignore[attr-defined]
    return refuse


class _RefusedMeta(ABCMeta):
    """Public members of a refused class are functions that raise; others do not exist."""

    def __getattr__(cls, name: str) -> Any:
        members, module, title, refusal = type.__getattribute__(cls, "_phantom_refused")
        if name not in members:
            raise AttributeError(f"type object {cls.__name__!r} has no attribute {name!r}")
        return refused_function(module, f"{title}.{name}", Function(), refusal)


def refused_class(module: str, name: str, members: tuple[str, ...], refusal: Refusal) -> type:
    """A class to annotate with, to inherit from and to compare with, that raises when one is made."""

    def __new__(cls: type, *_: Any, **__: Any) -> NoReturn:
        raise refusal(module, name)

    body = {
        "__new__": __new__,
        "__doc__": f"Not covered by phantom's stand-in: {module}.{name}.",
        "__module__": module,
        "_phantom_refused": (frozenset((*members, "apply")), module, name, refusal),
    }
    return _RefusedMeta(name, (), body)


class RefusedObject:
    """An object that only the library's own code makes: any use of it raises."""

    def __init__(self, module: str, name: str, refusal: Refusal) -> None:
        self._phantom_module, self._phantom_name, self._phantom_refusal = module, name, refusal

    def __call__(self, *_: Any, **__: Any) -> NoReturn:
        """Raises NotCovered."""
        raise self._phantom_refusal(self._phantom_module, self._phantom_name)

    __getitem__ = __iter__ = __len__ = __enter__ = __setitem__ = __call__

    def __exit__(self, *_: Any) -> None:
        """Never reached: entering raises."""

    def __repr__(self) -> str:
        return f"<{self._phantom_module}.{self._phantom_name}: not covered by phantom's stand-in>"


def signature(parameters: tuple[str, ...]) -> inspect.Signature:
    """The signature that a list's parameters write; defaults are not known and shown as `...`."""
    kinds = inspect.Parameter
    plain: Any = kinds.POSITIONAL_OR_KEYWORD
    out: list[inspect.Parameter] = []
    for text in parameters:
        if text == "/":
            out = [parameter.replace(kind=kinds.POSITIONAL_ONLY) for parameter in out]
        elif text == "*":
            plain = kinds.KEYWORD_ONLY
        elif text.startswith("**"):
            out.append(inspect.Parameter(text[2:], kinds.VAR_KEYWORD))
        elif text.startswith("*"):
            out.append(inspect.Parameter(text[1:], kinds.VAR_POSITIONAL))
            plain = kinds.KEYWORD_ONLY
        else:
            default = ... if text.endswith("=") else inspect.Parameter.empty
            out.append(inspect.Parameter(text.rstrip("="), plain, default=default))
    return inspect.Signature(out)


def find(library: str, module: str, name: str) -> tuple[Surface, Entry] | None:
    """The entry of `module.name` in a library's list, and the list; None where there is none."""
    surface = model.load(library)
    listed = surface.modules.get(module)
    entry = None if listed is None else listed.names.get(name)
    return None if entry is None else (surface, entry)
