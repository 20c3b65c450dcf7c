"""Which room of `interpose/csrc` includes which; the order is in interpose/csrc/README.md."""

from __future__ import annotations

import re
from graphlib import TopologicalSorter
from pathlib import Path

from interpose.build import SOURCES

ORDER = ("core", "time", "memory", "device", "operators", "values", "kernels", "distributed")
"""From the bottom to the top; `Module.cpp`, beside the rooms, starts the extension and may include all."""
MOST_UPWARD = 8
MOST_ARROWS = 45
MOST_FILES = 20

_INCLUDE = re.compile(r'^#include "([^"]+)"', re.MULTILINE)


def includes() -> dict[str, list[str]]:
    """The files of csrc, each with those that it includes, as paths below csrc."""
    files = [path for path in SOURCES.rglob("*") if path.suffix in (".h", ".cpp")]
    return {path.relative_to(SOURCES).as_posix(): _INCLUDE.findall(path.read_text()) for path in files}


def arrows(found: dict[str, list[str]]) -> list[tuple[str, str]]:
    """Includes from one room into another."""
    return [
        (file, included)
        for file, all_included in found.items()
        for included in all_included
        if "/" in file and file.split("/")[0] != included.split("/")[0]
    ]


def upward(found: dict[str, list[str]]) -> list[tuple[str, str]]:
    """Those that go against the order."""
    level = {room: place for place, room in enumerate(ORDER)}
    return [pair for pair in arrows(found) if level[pair[0].split("/")[0]] < level[pair[1].split("/")[0]]]


def test_every_source_is_in_a_room_and_every_include_names_one() -> None:
    found = includes()
    assert {file.split("/")[0] for file in found if "/" in file} == set(ORDER)
    assert [file for file in found if "/" not in file] == ["Module.cpp"]
    assert {name for names in found.values() for name in names} - set(found) == set()


def test_few_includes_go_upward() -> None:
    assert len(upward(includes())) <= MOST_UPWARD, upward(includes())


def test_an_upward_include_is_counted() -> None:
    assert upward({"core/A.h": ["time/B.h"], "time/B.h": ["core/C.h"]}) == [("core/A.h", "time/B.h")]


def test_few_rooms_include_each_other() -> None:
    pairs = {(a.split("/")[0], b.split("/")[0]) for a, b in arrows(includes())}
    assert len(pairs) <= MOST_ARROWS, sorted(pairs)


def test_headers_include_each_other_in_no_circle() -> None:
    headers = {file: names for file, names in includes().items() if file.endswith(".h")}
    assert len(list(TopologicalSorter(headers).static_order())) >= len(headers)


def test_a_room_stays_small_and_has_a_page() -> None:
    for room in ORDER:
        folder = Path(SOURCES, room)
        assert len(list(folder.glob("*.*"))) <= MOST_FILES
        assert (folder / "README.md").is_file()
