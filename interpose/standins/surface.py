"""How a stand-in answers for what it does not cover: by name, with the remedy."""

from __future__ import annotations

import dis
import importlib
import sys
from collections.abc import Callable
from types import FrameType, ModuleType
from typing import Any

from interpose.standins import registry
from interpose.standins.surfaces import model, objects

_IMPORT_FROM = dis.opmap["IMPORT_FROM"]


class NotCovered(NotImplementedError):
    """A function, argument or feature of a library that its stand-in has not; the text says what to do."""


class NameNotCovered(AttributeError):
    """A public name of a library that its stand-in has not, asked for as an attribute (hasattr is False)."""


class ImportNotCovered(ImportError):
    """A public name of a library that its stand-in has not, asked for by `from ... import ...`."""


def explanation(module: str, name: str) -> str:
    """The text of an error about `module.name`."""
    stand_in = registry.BY_MODULE[module.partition(".")[0]]
    return (
        f"{module}.{name}: phantom's stand-in of {stand_in.title} does not cover it (docs/stand-ins.md lists "
        f"what is covered). Either switch this feature off in the script, install {stand_in.distribution} "
        f"for this Python, or run with `phantom run --stand-ins none` if the script works without it."
    )


def not_covered(module: str, name: str, *, why: str = "") -> NotCovered:
    """The error to raise where a covered function is asked for more than it does."""
    return NotCovered(explanation(module, name) + (f" {why}" if why else ""))


def missing_names(module: str) -> Callable[[str], Any]:
    """Returns a module's `__getattr__`: what the library has by that name and the stand-in's module has not.

    A name of the library's surface list is there, and raises NotCovered once it is called
    (surfaces/objects.py). Other names are missing from the library itself: `hasattr` and `getattr` with a
    default see an AttributeError, `from module import name` an ImportError.
    """
    stand_in = registry.BY_MODULE[module.partition(".")[0]]

    def __getattr__(name: str) -> Any:
        found = objects.find(stand_in.name, module, name)
        asks_by_import = _is_import_from(sys._getframe(1))
        if found is not None:
            try:
                value = objects.make(found[0], module, name, found[1], not_covered)
            except ImportError as error:  # hasattr, and what an import asks first, know AttributeErrors only
                if asks_by_import:
                    raise
                raise NameNotCovered(f"{module}.{name}: {error}") from error
            sys.modules[module].__dict__[name] = value
            return value
        if not asks_by_import and f"{module}.{name}" in model.load(stand_in.name).modules:
            return importlib.import_module(f"{module}.{name}")  # the library imports it somewhere
        if name.startswith("_"):
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        text = (
            f"{module!r} has no {name!r} in {stand_in.title} {stand_in.version}, the version that phantom's "
            f"stand-in follows. If the script is for another version, install {stand_in.distribution} for "
            f"this Python, or run with `phantom run --stand-ins none` if the script works without it."
        )
        if asks_by_import:
            if f"{module}.{name}" in sys.modules:
                raise AttributeError(text)
            raise ImportNotCovered(text, name=module)
        raise NameNotCovered(text)

    return __getattr__


def _is_import_from(frame: FrameType) -> bool:
    """Whether the frame is in the middle of `from module import name`."""
    return frame.f_lasti >= 0 and frame.f_code.co_code[frame.f_lasti] == _IMPORT_FROM


def fill(module: ModuleType) -> None:
    """Makes a module of a library out of nothing but its surface list."""
    name = module.__name__
    stand_in = registry.BY_MODULE[name.partition(".")[0]]
    listed = model.load(stand_in.name).modules[name]
    module.__doc__ = f"{name} of {stand_in.title} {stand_in.version}: named, not covered."
    public = [key for key, entry in listed.names.items() if not key.startswith("_")]
    module.__dict__.setdefault("__all__", public)
    module.__dict__["__getattr__"] = missing_names(name)


def refused_class(module: str, name: str) -> type:
    """A class that frameworks name (in annotations, as a base) and that raises NotCovered when it is made."""
    return objects.refused_class(module, name, (), not_covered)
