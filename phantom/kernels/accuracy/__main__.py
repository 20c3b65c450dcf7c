"""``python -m phantom.kernels.accuracy``: writes the page, or checks a folder of measurements."""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from pathlib import Path

from phantom.kernels.accuracy.checked_row import CheckedRow, ErrorSummary, SkippedRow, summarize
from phantom.kernels.accuracy.page import page
from phantom.kernels.accuracy.tables import read_folder


def _text(summaries: list[ErrorSummary]) -> str:
    lines = [
        "| table | GPU | class | rows | median % | p90 % | worst % | bias % |",
        "|---|---|---|" + "---:|" * 5,
    ]
    for s in summaries:
        figures = f"{s.rows} | {s.median:.1f} | {s.p90:.1f} | {s.worst:.1f} | {s.bias:+.1f}"
        lines.append(f"| {s.table} | {s.gpu} | {s.klass} | {figures} |")
    return "\n".join(lines)


def _check(folder: Path, *, as_json: bool, worst: int) -> None:
    rows = read_folder(folder)
    checked = [row for row in rows if isinstance(row, CheckedRow)]
    summaries = summarize(checked)
    print(json.dumps([s.as_json() for s in summaries], indent=1) if as_json else _text(summaries))
    for row in sorted(checked, key=lambda row: -abs(row.error))[:worst]:
        figures = f"{row.measured_s * 1e6:,.1f} us measured, {row.predicted_s * 1e6:,.1f} predicted"
        print(f"{row.table}, {row.gpu}, {row.klass}: {row.what}: {figures}", file=sys.stderr)
    skipped = Counter((row.table, row.reason) for row in rows if isinstance(row, SkippedRow))
    for (table, reason), count in sorted(skipped.items()):
        print(f"skipped: {count} rows of {table}: {reason}", file=sys.stderr)


def main() -> None:
    """Write the page, or check every row of a folder's tables against the predictor."""
    root = Path(__file__).resolve().parents[3]
    parser = argparse.ArgumentParser(prog="python -m phantom.kernels.accuracy", description=main.__doc__)
    parser.add_argument("path", nargs="?", type=Path, default=root / "docs" / "accuracy-kernels.md",
                        help="the page to write")  # fmt: skip
    parser.add_argument("--data", type=Path, metavar="FOLDER", help="check the tables of this folder")
    parser.add_argument("--json", action="store_true", help="with --data: print JSON, errors in percent")
    parser.add_argument(
        "--worst", type=int, default=0, metavar="N", help="with --data: list the worst N rows"
    )
    options = parser.parse_args()
    if options.data is not None:
        try:
            _check(options.data, as_json=options.json, worst=options.worst)
        except FileNotFoundError as error:
            sys.exit(str(error))
        return
    options.path.write_text(page(), encoding="utf-8")
    print(f"wrote {options.path}")


if __name__ == "__main__":
    main()
