"""How a stand-in answers for what it does not cover: by name, with the remedy."""

from __future__ import annotations

import dis
import sys
from collections.abc import Callable
from typing import Any

from interpose.standins import registry

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
    """Returns a module's `__getattr__`: explains public names that are missing.

    `hasattr` and `getattr` with a default see an AttributeError, `from module import name` an ImportError,
    so that frameworks that probe for features go on without them.
    """

    def __getattr__(name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        text = explanation(module, name)
        frame = sys._getframe(1)
        code = frame.f_code.co_code
        if frame.f_lasti >= 0 and code[frame.f_lasti] == _IMPORT_FROM:
            if f"{module}.{name}" in sys.modules:
                raise AttributeError(text)
            raise ImportNotCovered(text, name=module)
        raise NameNotCovered(text)

    return __getattr__


def refused_class(module: str, name: str) -> type:
    """A class that frameworks name (in annotations, as a base) and that raises NotCovered when it is made."""

    def __new__(cls: type, *_: Any, **__: Any) -> Any:
        raise not_covered(module, name)

    return type(name, (), {"__new__": __new__, "__doc__": f"Not covered: {name}.", "__module__": module})
