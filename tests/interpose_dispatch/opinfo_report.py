"""Judges all of OpInfo, writes docs/opinfo.md: `python -m tests.interpose_dispatch.opinfo_report`."""

from __future__ import annotations

import argparse
import collections
import json
import time
from pathlib import Path

from .attached import attach, configure

REASONS = Path(__file__).with_name("opinfo_reasons.json")


def main() -> None:
    """Runs float32 and bfloat16, values off and on; prints progress and writes the page."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--out", type=Path, default=Path("docs/opinfo.md"))
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--limit", type=int, default=None, help="samples per operator")
    parser.add_argument("--dtypes", nargs="+", default=["float32", "bfloat16"])
    parser.add_argument("--values", nargs="+", default=["off", "on"])
    parser.add_argument("--only", nargs="+", default=None, help="names of operators")
    given = parser.parse_args()
    extension = attach()
    import torch

    from .opinfo_judge import DATA_DEPENDENT, Verdict, chosen, judge

    figures: list[tuple[str, str, str, int, int]] = []
    remaining: dict[tuple[str, str, str], list[str]] = collections.defaultdict(list)
    for dtype_name in given.dtypes:
        dtype = getattr(torch, dtype_name)
        for values in given.values:
            configure(values=values == "on")
            started = time.perf_counter()
            verdicts: list[Verdict] = []
            for op in chosen(dtype, every=given.every):
                if given.only and op.name not in given.only:
                    continue
                if values == "off" and op.name in DATA_DEPENDENT:
                    continue
                verdicts += judge(op, dtype, limit=given.limit)
            for part in ("forward", "backward"):
                judged = [v for v in verdicts if v.part == part and v.kind != "skipped"]
                same = sum(v.kind == "same" for v in judged)
                figures.append((dtype_name, values, part, same, len(judged)))
                share = 100 * same / max(len(judged), 1)
                print(
                    f"{dtype_name} values {values} {part}: {same}/{len(judged)} = {share:.2f} %", flush=True
                )
                for v in judged:
                    if v.kind != "same":
                        remaining[(v.op, part, f"{v.kind}: {v.text}")].append(f"{dtype_name}/{values}")
            print(
                f"   {time.perf_counter() - started:.0f} s, cache {extension.dispatch_counters()}", flush=True
            )
    write(given.out, figures, remaining, torch.__version__)
    for (op, part, text), where in remaining.items():
        print(op, part, len(where), text)


def write(
    out: Path,
    figures: list[tuple[str, str, str, int, int]],
    remaining: dict[tuple[str, str, str], list[str]],
    torch_version: str,
) -> None:
    """Writes the page: figures and what remains, with the reason for each operator where one is recorded."""
    reasons: dict[str, str] = json.loads(REASONS.read_text()) if REASONS.exists() else {}
    lines = [
        "# OpInfo as judge",
        "",
        f"Made by `python -m tests.interpose_dispatch.opinfo_report` against torch {torch_version}: every",
        "sample input of `torch.testing._internal.common_methods_invocations.op_db` runs on the CPU and on the",
        "virtual GPU; shape, dtype, layout and device must agree (strides are not judged). Samples that the CPU",
        "refuses are left out. With values off, operators whose result's shape depends on data are left out;",
        "they are judged with values on.",
        "",
        "| dtype | values | part | same | judged | share |",
        "|---|---|---|---|---|---|",
    ]
    for dtype, values, part, same, judged in figures:
        lines.append(
            f"| {dtype} | {values} | {part} | {same} | {judged} | {100 * same / max(judged, 1):.2f} % |"
        )
    lines += [
        "",
        "## What remains",
        "",
        "| operator | part | samples | seen | reason |",
        "|---|---|---|---|---|",
    ]
    for (op, part, text), where in sorted(remaining.items()):
        shown = text.replace("|", "\\|").replace("\n", " ")
        lines.append(f"| {op} | {part} | {len(where)} | {shown[:200]} | {reasons.get(op, '')} |")
    out.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
