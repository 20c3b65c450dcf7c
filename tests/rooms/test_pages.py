"""The table "Where to find" of docs/architecture.md names files and folders that exist."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def named_paths() -> list[str]:
    page = (ROOT / "docs" / "architecture.md").read_text()
    table = page.split("## Where to find")[1].split("##")[0]
    return re.findall(r"\| `([^`]+)` \|", table)


def test_every_path_of_the_table_exists() -> None:
    assert len(named_paths()) >= 5
    assert [path for path in named_paths() if not (ROOT / path).exists()] == []


def test_every_room_of_interpose_has_a_page() -> None:
    rooms = {path.parent for path in (ROOT / "interpose").glob("*/__init__.py")}
    assert len(rooms) >= 7
    assert [str(room) for room in rooms if not (room / "README.md").is_file()] == []
