"""Keeps the memory of ranks that are forks shared with the process that they were forked from.

A page is shared until somebody writes to it, and looking at a Python object writes its reference count. So
what looks at every object of every module is done before the fork (exchanging copies of the clocks), or is
left out at the end: weakref finalizers of torch's operator libraries, and the interpreter's taking the
modules apart. With torch loaded that is 50 MB per rank at its start and as much at its end, in all ranks at
once.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import sys
import weakref
from types import FunctionType, ModuleType
from typing import Any

from interpose.time import clocks

_OF_THE_INTERPRETER = ("sys", "builtins", "__main__")
_loaded: dict[str, ModuleType] = {}


class Kept:
    """Stands in sys.modules for a module that the interpreter shall not take apart at its end."""

    def __init__(self, module: ModuleType) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


class Remainder:
    """Drops what the script's modules hold where something older than the fork keeps their variables alive.

    That is common: `Optional[Config]` puts Config into a cache of `typing`, and its methods hold the
    variables of the script. Python would let go of them when it takes `typing` apart; a file that was left
    open there is written then. Nothing can refer to a module's dict weakly but through a function of it.
    """

    def __init__(self, modules: list[ModuleType]) -> None:
        self._anchors: list[weakref.ref[FunctionType]] = []
        for module in modules:
            anchor = FunctionType(_anchor.__code__, vars(module))
            vars(module)["__phantom_anchor__"] = anchor
            self._anchors.append(weakref.ref(anchor))

    def __del__(self) -> None:
        left = [anchor.__globals__ for reference in self._anchors if (anchor := reference()) is not None]
        # Objects before functions and classes, so that their __del__ finds those.
        for is_code in (False, True):
            for variables in left:
                for name, value in list(variables.items()):
                    # Not isinstance: it may run code of the value's class, whose variables are gone by now.
                    kind = type(value)
                    is_kept = issubclass(kind, ModuleType) or name.startswith("__")
                    if not is_kept and issubclass(kind, (type, FunctionType)) is is_code:
                        variables[name] = None


def _anchor() -> None:
    """Its code is that of the functions that `Remainder` refers to."""


def register() -> None:
    """Notes what is to be done at the end of every fork of this process; before others note theirs, since the
    last shall be first."""
    atexit.register(_keep_modules)


def share() -> None:
    """What has to be done right before the forks."""
    clocks.replace_functions()
    _loaded.update(
        (name, module)
        for name, module in sys.modules.items()
        if name not in _OF_THE_INTERPRETER and isinstance(module, ModuleType)
    )
    for finalizer in weakref.finalize._registry:  # type: ignore[attr-defined]  # nothing public lists them
        finalizer.atexit = False
    gc.collect()
    gc.freeze()


def _keep_modules() -> None:
    """Leaves the modules from before the fork whole.

    All else ends as ever: what the script made is taken apart and open files of its are written. A daemon
    thread that still runs may import a module and finds it.
    """
    if not _loaded:
        return
    for name, module in _loaded.items():
        if sys.modules.get(name) is module:
            sys.modules[name] = Kept(module)  # type: ignore[assignment]
    inherited = {id(module) for module in _loaded.values()}
    # Python drops the variables of a module that is still there after it let go of all; then those of sys.
    end = ModuleType("_phantom_end")
    end.remainder = Remainder(  # type: ignore[attr-defined]
        [
            module
            for name, module in list(sys.modules.items())
            if isinstance(module, ModuleType)
            and name not in ("sys", "builtins")
            and id(module) not in inherited
        ]
    )
    sys.modules[end.__name__] = end
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(end))
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(_loaded))  # so that none of them is freed
