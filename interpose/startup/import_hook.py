"""Attaches the virtual device at the right moment of torch's own import.

`torch.cuda` binds the names `torch._C._cuda_*` while it is imported, so they must be there by then; and the
extension needs `torch._C`, which `torch/__init__` has loaded at that point.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType


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
            from interpose.startup.attach import attach

            attach()
        return None


def install(*, before: Callable[[], None] | None = None) -> None:
    """Puts the watcher first on sys.meta_path, once; `before` runs right before attach().

    Raises RuntimeError where torch.cuda has been imported already: nothing could be attached any more.
    """
    if os.environ.get("PHANTOM") == "record":  # a real run: `phantom record`
        from interpose.startup import recorder

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
