"""What README.md and docs/tutorial.md say that commands print is what they print."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from interpose.build import is_current

from . import candidates, pages

EXAMPLES = list(pages.examples())
REFRESH = "the page is out of date: python -m tests.docs"
TRIED = (2, 4)
"""The row of the tutorial's table that is run here; `python -m tests.docs` runs all."""


@pytest.mark.parametrize("example", EXAMPLES, ids=[example.name for example in EXAMPLES])
def test_commands_print_what_the_page_says(example: pages.Example, tmp_path: Path) -> None:
    if not is_current():
        pytest.skip("the extension is not built: python -m interpose.build")
    assert pages.differences(example.output, pages.run(example.command, tmp_path)) == [], REFRESH


def test_a_row_of_the_comparison_is_what_a_run_gives(tmp_path: Path) -> None:
    if not is_current():
        pytest.skip("the extension is not built: python -m interpose.build")
    rows = candidates.rows()
    assert [tuple(map(int, re.findall(r"\d+", row)[:2])) for row in rows] == candidates.choices()
    shown = rows[candidates.choices().index(TRIED)]
    assert pages.differences(shown, candidates.row(*TRIED, tmp_path)) == [], REFRESH


def test_every_example_is_run() -> None:
    """By a page, or, where it is for a framework, by a case of the frameworks' matrix."""
    commands = " ".join(example.command for example in EXAMPLES)
    cases = " ".join(path.read_text() for path in (pages.ROOT / "tests" / "frameworks").glob("cases_*.py"))
    scripts = [
        path.name
        for path in sorted((pages.ROOT / "examples").glob("*.py"))
        if not re.search(r"^(?:from|import) megatron", path.read_text(), re.M)
    ]
    assert scripts
    assert [script for script in scripts if f"examples/{script}" not in commands + cases] == []


def test_blocks_are_found_and_replaced() -> None:
    text = (
        "# T\n\n<!-- run: one -->\n    phantom run a.py\n\nprints\n\n<!-- output -->\n    old\n\n    more\n\n"
        "and on.\n\n<!-- run: two -->\n    x\n\n<!-- output -->\n    y\n"
    )
    changed = pages.replaced(text, "one", "new\n\nlines\n")
    assert changed == text.replace("    old\n\n    more\n", "    new\n\n    lines\n")
    assert [found["name"] for found in pages.BLOCK.finditer(changed)] == ["one", "two"]
    assert pages.replaced(text, "two", "z").endswith("<!-- output -->\n    z\n")
    assert pages.lasting("a \nreal time  3 s\nphantom: b\nc\n") == ["a", "c"]


def test_what_differs_is_told() -> None:
    page = "step time  30.92 ms  (5 steps)\nidle  <0.1%\nreal time  9 s\n"
    assert pages.differences(page, "step time  31.0 ms  (5 steps)\nidle   1.2%\nreal time  70 s\n") == []
    for wrong in ("step time  33 ms  (5 steps)\nidle  0.1%", "step time  30.92 us  (5 steps)\nidle  0.1%"):
        assert len(pages.differences(page, wrong)) == 1
    assert pages.differences(page, "step time  30.92 ms  (5 steps)\nidle  2.2%") == [
        "- idle  <0.1%\n+ idle  2.2%"
    ]
    assert len(pages.differences(page, "step time  30.92 ms  (5 steps)\n")) == 1
