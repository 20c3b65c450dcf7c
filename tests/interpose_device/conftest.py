"""A session whose torch has the virtual device, attached at the first import of torch.cuda."""

from __future__ import annotations

import importlib.abc
import importlib.util
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest

CONFIG: dict[str, Any] = {"device_count": 8, "capacity_bytes": 79 << 30}


class _AttachFinder(importlib.abc.MetaPathFinder):
    """Installs the device when torch.cuda is about to be imported; finds nothing itself."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        if name == "torch.cuda":
            sys.meta_path.remove(self)
            from interpose import cuda_surface, extension

            loaded = extension.load()
            loaded.install(CONFIG)
            cuda_surface.install(loaded, CONFIG)


def attach() -> ModuleType:
    """Imports torch with the virtual device and returns the extension."""
    from interpose import extension

    if "torch" not in sys.modules:
        sys.meta_path.insert(0, _AttachFinder())
        import torch  # noqa: F401
    return extension.load()


EXTENSION = attach()


@pytest.fixture
def device() -> Iterator[ModuleType]:
    """The extension, with an empty cache and fresh statistics on cuda:0 before and after."""
    import gc

    import torch

    torch.cuda.set_device(0)
    torch.cuda.set_stream(torch.cuda.default_stream())
    gc.collect()
    torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    torch.cuda.reset_accumulated_memory_stats()
    yield EXTENSION
    gc.collect()
    torch.cuda.empty_cache()
