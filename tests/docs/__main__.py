"""Runs the commands of the pages and puts what they print into them: `python -m tests.docs [NAME ...]`.

NAME is the name of a block, or "candidates" for the tutorial's table (five runs of 32 ranks); all without.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from . import candidates, pages


def main(names: list[str]) -> None:
    """Refreshes the named blocks."""
    for example in pages.examples():
        if names and example.name not in names:
            continue
        with tempfile.TemporaryDirectory() as folder:
            output = pages.run(example.command, Path(folder))
        path = pages.ROOT / example.page
        path.write_text(
            pages.replaced(path.read_text(encoding="utf-8"), example.name, output), encoding="utf-8"
        )
        print(f"{example.page}: {example.name}", flush=True)
    if not names or "candidates" in names:
        with tempfile.TemporaryDirectory() as folder:
            made = [candidates.row(tp, pp, Path(folder)) for tp, pp in candidates.choices()]
        text = candidates.PAGE.read_text(encoding="utf-8")
        candidates.PAGE.write_text(candidates.replaced(text, made), encoding="utf-8")
        print("docs/tutorial.md: candidates", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
