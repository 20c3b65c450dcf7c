"""Fixtures: the attached extension with default settings."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType

import pytest

from .attached import attach, configure

EXTENSION = attach()


@pytest.fixture
def extension() -> Iterator[ModuleType]:
    """The extension; settings and cost callback are put back afterwards."""
    import torch

    configure()
    EXTENSION.set_healthy_step(0)
    torch.cuda.set_device(0)
    yield EXTENSION
    EXTENSION.set_cost_callback(None)
    configure()
