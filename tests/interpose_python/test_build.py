"""Where the extension is built and looked for."""

from __future__ import annotations

import ctypes
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


@pytest.fixture
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of sources of one line each in place of the extension's; they are built in another."""
    folder = tmp_path / "csrc"
    folder.mkdir()
    for number in range(2 * build.BUNDLES + 1):
        (folder / f"File{number:02}.cpp").write_text(
            f'extern "C" __attribute__((visibility("default"))) int value{number}() {{ return {number}; }}\n'
        )
    monkeypatch.setattr(build, "SOURCES", folder)
    monkeypatch.setenv("PHANTOM_BUILD_DIR", str(tmp_path / "build"))
    return folder


def test_every_source_is_in_one_bundle_and_in_the_extension(sources: Path) -> None:
    library = ctypes.CDLL(str(build.build()))
    assert build.is_current()
    texts = [path.read_text() for path in sorted(build.build_dir().glob("bundle*.cpp"))]
    included = [line for text in texts for line in text.splitlines()]
    assert included == [f'#include "{path.name}"' for path in sorted(sources.glob("*.cpp"))]
    assert len(texts) == build.BUNDLES
    assert [library[f"value{number}"]() for number in range(len(included))] == list(range(len(included)))


def test_an_error_names_the_source_and_not_only_its_bundle(sources: Path) -> None:
    (sources / "File03.cpp").write_text("int broken() { return missing; }\n")
    with pytest.raises(RuntimeError, match=r"File03\.cpp:1:\d+: error: .*missing"):
        build.build()
    assert not build.is_current()


def test_a_source_that_goes_leaves_the_extension(sources: Path) -> None:
    build.build()
    (sources / "File00.cpp").unlink()
    assert not build.is_current()
    build.build()
    texts = "".join(path.read_text() for path in build.build_dir().glob("bundle*.cpp"))
    assert build.is_current()
    assert "File00" not in texts
