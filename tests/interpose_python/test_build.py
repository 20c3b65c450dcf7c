"""Where the extension is built and looked for."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from interpose import build


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An installation that this user cannot write to; returns its folder for builds."""
    monkeypatch.delenv("PHANTOM_BUILD_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(build, "__file__", str(tmp_path / "interpose" / "build.py"))
    monkeypatch.setattr(
        os, "access", lambda path, mode: not Path(path).is_relative_to(tmp_path / "interpose")
    )
    folder = tmp_path / "interpose" / "_build" / build.build_dir().name
    folder.mkdir(parents=True)
    return folder


def test_an_installation_that_cannot_be_written_to_brings_its_build(installed: Path) -> None:
    (installed / "_C.so").touch()
    (installed / "stamp").write_text(build.stamp())
    assert build.build_dir() == installed
    assert build.is_current()


def test_without_a_build_that_fits_the_users_cache_is_used(installed: Path, tmp_path: Path) -> None:
    (installed / "_C.so").touch()
    (installed / "stamp").write_text("of other sources")
    assert build.build_dir().is_relative_to(tmp_path / "cache")
    assert not build.is_current()
