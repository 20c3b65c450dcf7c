"""What `--timeline` costs: one job of 64 ranks with and without it, in CPU time of all processes.

Run `python -m benchmarks.timeline_cost [--nodes 8] [--steps 6] [--pairs 2]`. Prints one JSON line per run and
one with the ratio of the medians; exits 1 if that is above 1.5. CPU time, since the machine may be busy with
other things; the real time is shown beside it.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
LIMIT = 1.5


def run(nodes: int, steps: int, *, timeline: bool) -> dict[str, Any]:
    """One run; its CPU and real seconds and the size of what it recorded."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out"
        options = ["-N", str(nodes), "-G", "8", "--steps", str(steps), "-q", "--out", str(out)]
        command = [sys.executable, "-m", "phantom.cli.main", "run", *options]
        command += ["--timeline"] if timeline else []
        before, begin = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        subprocess.run(
            [*command, str(ROOT / "examples/train_gpt.py"), "--layers", "6"],
            cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, stdout=subprocess.DEVNULL, check=True,
        )  # fmt: skip
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        recorded = sum(path.stat().st_size for path in (out / "spool").iterdir())
        written = out / "timeline.pftrace"
        return {
            "timeline": timeline,
            "cpu_s": round(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, 2),
            "real_s": round(time.perf_counter() - begin, 2),
            "recorded_bytes": recorded,
            "timeline_bytes": written.stat().st_size if timeline else 0,
        }


def main() -> None:
    """Runs the pairs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=8)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--pairs", type=int, default=2)
    arguments = parser.parse_args()
    taken: dict[bool, list[float]] = {False: [], True: []}
    for _ in range(arguments.pairs):
        for timeline in (False, True):
            result = run(arguments.nodes, arguments.steps, timeline=timeline)
            taken[timeline].append(result["cpu_s"])
            line = {"benchmark": "timeline_cost", "ranks": 8 * arguments.nodes, "steps": arguments.steps}
            print(json.dumps({**line, **result}), flush=True)
    ratio = statistics.median(taken[True]) / statistics.median(taken[False])
    print(json.dumps({"benchmark": "timeline_cost", "ratio": round(ratio, 3), "limit": LIMIT}), flush=True)
    raise SystemExit(0 if ratio <= LIMIT else 1)


if __name__ == "__main__":
    main()
