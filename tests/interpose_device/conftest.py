"""A session whose torch has the virtual device, attached at the first import of torch.cuda."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType

import pytest
from interpose_dispatch.attached import CONFIG, attach

__all__ = ["CONFIG"]
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
