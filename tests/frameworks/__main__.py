"""Runs the frameworks matrix and writes docs/frameworks.md: `python -m tests.frameworks` (`make frameworks`).

    python -m tests.frameworks [NAME=PATH ...] [--only REGEX] [--keep FOLDER]

`NAME=PATH` gives the checkout that some cases run in, like `megatron=~/Megatron-LM`. With `--only` the rows
of the other cases are those of the last run in this checkout (build/frameworks.json). Exit status 1 if a case
failed.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from .case import Case
from .collect import collect_cases
from .outcome import ROOT, Outcome, run_case
from .page import page

PAGE = ROOT / "docs" / "frameworks.md"
ROWS = ROOT / "build" / "frameworks.json"


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs what is asked for and prints one line per case."""
    parser = argparse.ArgumentParser(prog="python -m tests.frameworks", description=__doc__.splitlines()[0])
    parser.add_argument("paths", nargs="*", metavar="NAME=PATH", help="a checkout that some cases run in")
    parser.add_argument("--only", metavar="REGEX", default="", help="only cases whose name matches")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="leave the runs' folders in FOLDER")
    given = parser.parse_args(arguments)
    for word in given.paths:
        name, _, path = word.partition("=")
        if not name or not Path(path).expanduser().is_dir():
            parser.error(f"{word!r}: wants NAME=PATH of an existing folder, like megatron=../Megatron-LM")
    paths = {
        name: str(Path(path).expanduser().resolve())
        for name, _, path in (w.partition("=") for w in given.paths)
    }
    cases = collect_cases()
    chosen = [case for case in cases if re.search(given.only, case.name)]
    if not chosen:
        parser.error(f"--only {given.only!r}: no case has such a name")
    rows = kept_rows(cases) if given.only else {}
    failed = False
    with tempfile.TemporaryDirectory(prefix="phantom-frameworks-") as temporary:
        for outcome in run_all(chosen, given.keep or Path(temporary), paths):
            failed = failed or outcome.failed
            rows[outcome.name] = outcome
            write([rows[case.name] for case in cases if case.name in rows])
    return 1 if failed else 0


def write(outcomes: Sequence[Outcome]) -> None:
    """Writes rows and page; after every case, so that a matrix that is interrupted keeps what it has."""
    ROWS.parent.mkdir(exist_ok=True)
    ROWS.write_text(json.dumps([outcome.row() for outcome in outcomes], indent=1))
    PAGE.write_text(page(outcomes))


def run_all(cases: Sequence[Case], folder: Path, paths: Mapping[str, str]) -> Iterator[Outcome]:
    """Runs cases one after the other; prints each as it ends."""
    for case in cases:
        outcome = run_case(case, (folder / case.name).resolve(), paths)
        print(f"{case.name:36} {case.ranks:4} ranks {outcome.wall_s:6.1f} s  {outcome.status}", flush=True)
        if outcome.failed:
            print(outcome.output, file=sys.stderr, flush=True)
        yield outcome


def kept_rows(cases: Sequence[Case]) -> dict[str, Outcome]:
    """Rows of the last run in this checkout, of cases that are still there."""
    if not ROWS.exists():
        return {}
    names = {case.name for case in cases}
    rows = [Outcome(**row) for row in json.loads(ROWS.read_text())]
    return {row.name: row for row in rows if row.name in names}


if __name__ == "__main__":
    sys.exit(main())
