"""What tests of stand-ins share."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator

import pytest

from interpose.standins import finder, registry


@pytest.fixture
def standins(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The finder as in a job that allows all; what was imported is forgotten afterwards."""
    monkeypatch.setenv("PHANTOM_CONFIG", json.dumps({"stand_ins": "all"}))
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    finder.install()
    yield
    for name in list(sys.modules):
        if name.partition(".")[0] in registry.BY_MODULE:
            del sys.modules[name]
