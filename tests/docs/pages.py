"""Code blocks of the pages that are run: what is under `<!-- run: NAME -->`, and its `<!-- output -->`."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = ("README.md", "docs/tutorial.md")
BLOCK = re.compile(
    r"<!-- run: (?P<name>[\w-]+) -->\n(?P<command>(?:    .*\n)+)"
    r"(?P<between>[^<]*?)<!-- output -->\n(?P<output>(?:(?:    .*)?\n)+?)(?=\n?(?:\S|\Z))"
)
CHANGING = re.compile(r"^(real time|phantom: )")
"""Lines that are of this machine and not of the simulated one."""


@dataclass(frozen=True)
class Example:
    """One block: the page (relative to the repository), its name, its commands, and what they print."""

    page: str
    name: str
    command: str
    output: str


def examples() -> Iterator[Example]:
    """All blocks of all pages."""
    for page in PAGES:
        text = (ROOT / page).read_text(encoding="utf-8")
        for found in BLOCK.finditer(text):
            yield Example(page, found["name"], _unindented(found["command"]), _unindented(found["output"]))


def _unindented(text: str) -> str:
    return "\n".join(line[4:] for line in text.splitlines()).strip("\n")


def run(command: str, folder: Path, *, timeout_s: int = 280) -> str:
    """What the commands print on standard output, started in `folder` as a user would in a checkout.

    Raises AssertionError with everything they printed where they fail.
    """
    programs = folder / "bin"
    programs.mkdir()
    phantom = programs / "phantom"
    phantom.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m phantom.cli.main "$@"\n')
    phantom.chmod(0o755)
    (folder / "examples").symlink_to(ROOT / "examples")
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PATH": f"{programs}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "-e", "-c", command],
        cwd=folder, env=environment, capture_output=True, text=True, timeout=timeout_s,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def lasting(output: str) -> list[str]:
    """The lines that every machine prints alike."""
    lines = [line.rstrip() for line in output.strip("\n").splitlines()]
    return [line for line in lines if not CHANGING.match(line)]


NUMBER = re.compile(r"<?(\d[\d,]*(?:\.\d+)?)(%?)")
TOLERANCE, POINTS = 0.02, 1.5


def differences(shown: str, printed: str) -> list[str]:
    """Lines that differ: in words, or in a number by more than 2 %, or a share by more than 1.5 points.

    Times are the same to the digit on every machine (tests/launch compares bits), but they change a little
    with every new calibration of a cost, and a page need not be renewed for that.
    """
    old, new = lasting(shown), lasting(printed)
    wrong = [f"- {a}\n+ {b}" for a, b in zip(old, new) if not _alike(a, b)]
    return wrong + [f"- {line}" for line in old[len(new) :]] + [f"+ {line}" for line in new[len(old) :]]


def _alike(old: str, new: str) -> bool:
    if NUMBER.sub("#", old).split() != NUMBER.sub("#", new).split():
        return False
    for (a, share), (b, _) in zip(NUMBER.findall(old), NUMBER.findall(new)):
        x, y = float(a.replace(",", "")), float(b.replace(",", ""))
        if abs(x - y) > (POINTS if share else TOLERANCE * max(abs(x), abs(y))):
            return False
    return True


def replaced(text: str, name: str, output: str) -> str:
    """The page's text with another output under the block of that name."""
    shown = "\n".join(f"    {line}".rstrip() for line in output.strip("\n").splitlines()) + "\n"

    def put(found: re.Match[str]) -> str:
        if found["name"] != name:
            return found[0]
        return found[0][: found.start("output") - found.start()] + shown

    return BLOCK.sub(put, text)
