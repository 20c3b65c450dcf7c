"""Changes a module right after it has been imported, before anybody copies names out of it."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType

Change = Callable[[ModuleType], None]


class AfterImport:
    """A finder that leaves the finding to others and runs a change when the module has been executed."""

    def __init__(self) -> None:
        self._changes: dict[str, list[Change]] = {}

    def add(self, name: str, change: Change) -> None:
        """Notes a change for the module `name`."""
        self._changes.setdefault(name, []).append(change)

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Called by the import system for every module that is imported."""
        changes = self._changes.pop(name, None)
        if changes is None:
            return None
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return spec
        loader = spec.loader
        execute = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            for change in changes:
                change(module)

        loader.exec_module = exec_module  # type: ignore[method-assign]  # on this loader object only
        return spec


_after_import = AfterImport()


def after_import(name: str, change: Change) -> None:
    """Runs `change(module)` right after the module `name` has been imported; at once where it has been
    already."""
    module = sys.modules.get(name)
    if module is not None and not getattr(getattr(module, "__spec__", None), "_initializing", False):
        change(module)
        return
    _after_import.add(name, change)
    if _after_import not in sys.meta_path:
        sys.meta_path.insert(0, _after_import)
