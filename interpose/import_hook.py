"""Acts at the right moment of torch's own import.

`torch.cuda` binds the names `torch._C._cuda_*` while it is imported, so they must be there by then; and the
extension needs `torch._C`, which `torch/__init__` has loaded at that point. Other modules are changed right
after they ran, before anybody copies names out of them.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType

Change = Callable[[ModuleType], None]


class TorchCudaWatcher:
    """A finder that finds nothing; it only acts when torch.cuda is looked for, once.

    `before` is called first: a process that was started early may still have to be told what it runs for.
    """

    def __init__(self, before: Callable[[], None] | None = None) -> None:
        self._before = before

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Called by the import system for every module that is imported."""
        if name == "torch.cuda":
            uninstall()
            if self._before is not None:
                self._before()
            from interpose.attach import attach

            attach()
        return None


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


def install(*, before: Callable[[], None] | None = None) -> None:
    """Puts the watcher first on sys.meta_path, once; `before` runs right before attach().

    Raises RuntimeError where torch.cuda has been imported already: nothing could be attached any more.
    """
    if os.environ.get("PHANTOM") == "record":  # a real run: `phantom record`
        from interpose import recorder

        recorder.install()
        return
    if "torch.cuda" in sys.modules:
        raise RuntimeError("phantom must be attached before torch.cuda is imported")
    from interpose.standins import finder

    uninstall()
    sys.meta_path.insert(0, TorchCudaWatcher(before))
    finder.install()


def uninstall() -> None:
    """Takes the watcher off sys.meta_path again."""
    sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, TorchCudaWatcher)]


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
