"""Judges all of OpInfo, writes docs/opinfo.md: `python -m tests.interpose_dispatch.opinfo_report`.

Each of the four parts (dtype, values off or on) runs in its own process and leaves a JSON file;
`--part float32 off` runs one of them.
"""

from __future__ import annotations

import argparse
import collections
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

REASONS = Path(__file__).with_name("opinfo_reasons.json")
PARTS = [("float32", "off"), ("float32", "on"), ("bfloat16", "off"), ("bfloat16", "on")]


def run_part(dtype_name: str, values: str, *, every: int, limit: int | None, out: Path) -> None:
    """Judges one part and writes its counts and its mismatches as JSON."""
    from .attached import attach, configure

    attach()
    import torch

    from .opinfo_judge import DATA_DEPENDENT, Verdict, chosen, judge

    configure(values=values == "on")
    dtype = getattr(torch, dtype_name)
    verdicts: list[Verdict] = []
    for op in chosen(dtype, every=every):
        if values == "on" or op.name not in DATA_DEPENDENT:
            verdicts += judge(op, dtype, limit=limit)
    counts: dict[str, dict[str, int]] = {"forward": {}, "backward": {}}
    for v in verdicts:
        counts[v.part][v.kind] = counts[v.part].get(v.kind, 0) + 1
    wrong = [[v.op, v.part, v.kind, v.text] for v in verdicts if v.kind in ("differs", "raises", "cuda")]
    found = {
        "limit": limit,
        "dtype": dtype_name,
        "values": values,
        "torch": torch.__version__,
        "counts": counts,
        "wrong": wrong,
    }
    out.write_text(json.dumps(found, indent=1))
    for part, kinds in counts.items():
        print(f"{dtype_name} values {values} {part}: {kinds}", flush=True)


def write(out: Path, parts: list[dict[str, Any]]) -> None:
    """Writes the page: figures, and each mismatch with its reason."""
    reasons: dict[str, str] = json.loads(REASONS.read_text())
    version = parts[0]["torch"]
    lines = [
        "# OpInfo as judge",
        "",
        f"Made by `python -m tests.interpose_dispatch.opinfo_report` against torch {version}: sample",
        "inputs of `torch.testing._internal.common_methods_invocations.op_db` run on CPU and virtual",
        "GPU; shape, dtype, layout and device must agree (strides are not judged). Samples that the CPU",
        "refuses are left out. With values off, operators whose result's shape depends on data are left out;",
        "they are judged with values on. *CUDA differs*: the CUDA build itself gives other metadata than the",
        "CPU, and the virtual GPU gives CUDA's; these count as right.",
        "",
        f"Samples per operator: {parts[0]['limit'] or 'all'}.",
        "",
        "| dtype | values | part | same | CUDA differs | wrong | right |",
        "|---|---|---|---|---|---|---|",
    ]
    remaining: dict[tuple[str, str, str, str], list[str]] = collections.defaultdict(list)
    for part in parts:
        for direction, kinds in part["counts"].items():
            same, cuda = kinds.get("same", 0), kinds.get("cuda", 0)
            wrong = kinds.get("differs", 0) + kinds.get("raises", 0)
            share = 100 * (same + cuda) / max(same + cuda + wrong, 1)
            cells = [part["dtype"], part["values"], direction, same, cuda, wrong, f"{share:.2f} %"]
            lines.append("| " + " | ".join(map(str, cells)) + " |")
        for op, direction, kind, text in part["wrong"]:
            remaining[(op, direction, kind, text)].append(f"{part['dtype']}/{part['values']}")
    lines += [
        "",
        "## What remains",
        "",
        "| operator | part | samples | seen | reason |",
        "|---|---|---|---|---|",
    ]
    for (op, direction, kind, text), where in sorted(remaining.items()):
        shown = text.replace("|", "\\|").replace("\n", " ")[:160]
        label = "CUDA differs" if kind == "cuda" else kind
        lines.append(f"| {op} | {direction} | {len(where)} | {label}: {shown} | {reasons.get(op, '')} |")
    out.write_text("\n".join(lines) + "\n")


def main() -> int:
    """Runs the parts, two at a time, and writes the page; the number of parts that failed to run."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--out", type=Path, default=Path("docs/opinfo.md"))
    parser.add_argument("--work", type=Path, default=None, help="folder for the parts' JSON files")
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--limit", type=int, default=None, help="samples per operator")
    parser.add_argument("--part", nargs=2, default=None, metavar=("DTYPE", "VALUES"))
    parser.add_argument("--merge", action="store_true", help="only write the page from the folder's files")
    given = parser.parse_args()
    work = given.work or Path(tempfile.mkdtemp(prefix="phantom-opinfo-"))
    work.mkdir(parents=True, exist_ok=True)
    if given.part:
        dtype, values = given.part
        target = work / f"{dtype}-{values}.json"
        run_part(dtype, values, every=given.every, limit=given.limit, out=target)
        return 0
    failed = 0
    if not given.merge:
        for first in range(0, len(PARTS), 2):
            command = [sys.executable, "-m", "tests.interpose_dispatch.opinfo_report", "--work", str(work)]
            command += ["--every", str(given.every)]
            command += ["--limit", str(given.limit)] if given.limit else []
            running = [subprocess.Popen([*command, "--part", *part]) for part in PARTS[first : first + 2]]
            failed += sum(process.wait() != 0 for process in running)
    parts = [json.loads(p.read_text()) for p in (work / f"{d}-{v}.json" for d, v in PARTS) if p.exists()]
    write(given.out, parts)
    return failed


if __name__ == "__main__":
    sys.exit(main())
