"""A fake extension and a rank without a simulator, for one test each."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from interpose.time import clocks, session
from interpose_python.fake_extension import FakeExtension


@pytest.fixture
def extension() -> FakeExtension:
    """The extension of a process that is no rank yet."""
    return FakeExtension()


@pytest.fixture
def rank(extension: FakeExtension, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeExtension]:
    """The extension of a process whose session is open; nothing is sent anywhere."""
    monkeypatch.setattr(session, "_session", object())
    extension.session_open(0)
    yield extension
    clocks.uninstall()


@pytest.fixture(autouse=True)
def _no_state_is_left() -> Iterator[Any]:
    yield
    clocks.uninstall()
