"""torch with the virtual device attached, as `phantom run` does it, for this process."""

from __future__ import annotations

import importlib.abc
import sys
from types import ModuleType
from typing import Any

CONFIG: dict[str, Any] = {
    "device_count": 8,
    "capacity_bytes": 79 << 30,
    "values": True,
    "unknown_values": "healthy",
}


class _AttachFinder(importlib.abc.MetaPathFinder):
    """Installs the device when torch.cuda is about to be imported; finds nothing itself."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        if name == "torch.cuda":
            sys.meta_path.remove(self)
            from interpose import extension
            from interpose.cuda import surface

            loaded = extension.load()
            loaded.install(CONFIG)
            surface.install(loaded, CONFIG)


def attach() -> ModuleType:
    """Imports torch with the virtual device (unless this process has) and returns the extension."""
    from interpose import extension

    if "torch" not in sys.modules:
        sys.meta_path.insert(0, _AttachFinder())
        import torch  # noqa: F401
    return extension.load()


def configure(**settings: Any) -> None:
    """Changes settings of the running device, e.g. `values=False`."""
    attach().install({**CONFIG, **settings})
