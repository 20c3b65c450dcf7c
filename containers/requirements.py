"""Prints what an image installs beside torch: `requirements.py [EXTRA | PACKAGE ...]`.

The project's own dependencies come first, then those of the named extras of pyproject.toml (which lies beside
this file or in the folder above); any other word is a requirement by itself, such as torchtitan==0.2.2.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import tomllib

BUILD = ("setuptools>=70", "wheel")
"""What `pip install --no-build-isolation -e .` needs."""


def requirements(project: dict[str, object], wanted: Sequence[str]) -> list[str]:
    """The lines of a requirements file. `project` is pyproject.toml's [project]."""
    extras = project.get("optional-dependencies", {})
    own = project["dependencies"]
    assert isinstance(extras, dict)
    assert isinstance(own, list)
    lines = [*BUILD, *own]
    for word in wanted:
        lines += extras.get(word, [word])
    return list(dict.fromkeys(lines))


def main() -> None:
    """Reads pyproject.toml and prints."""
    here = Path(__file__).resolve().parent
    file = next(path for path in (here / "pyproject.toml", here.parent / "pyproject.toml") if path.exists())
    project = tomllib.loads(file.read_text(encoding="utf-8"))["project"]
    print("\n".join(requirements(project, sys.argv[1:])))


if __name__ == "__main__":
    main()
