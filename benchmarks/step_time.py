"""Real time per simulated step: an 8-layer transformer on one rank, and under FSDP2 on 8 ranks.

Everything is on (costs, records, accounting); the jobs run under `phantom run` as a user's would. Target:
at most 8 ms per rank and step for the plain transformer; the FSDP2 figure stands beside it.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

JOB = Path(__file__).with_name("_step_job.py")


def measure(kind: str, gpus: int) -> None:
    """Runs one job and prints its figures."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "run")
        command = [sys.executable, "-m", "phantom.cli.main", "run", "-q", "--out", str(out), "-G", str(gpus)]
        subprocess.run([*command, str(JOB), kind], check=True, capture_output=True)
        line = next(text for text in (out / "ranks" / "0.log").read_text().splitlines() if "RESULT" in text)
        cpu_s, real_s = json.loads(line.split("RESULT", 1)[1])
        summary = json.loads((out / "summary.json").read_text())
    ops = summary["ranks"][0]["ops"] / len(summary["steps"])
    print(
        f"{kind:12} {gpus} rank(s): {ops:6.0f} operators, CPU {statistics.median(cpu_s) * 1e3:6.2f} ms, "
        f"real {statistics.median(real_s) * 1e3:6.2f} ms per rank and step (best {min(real_s) * 1e3:.2f}); "
        f"virtual step {summary['step_virtual_s']['median'] * 1e3:.2f} ms"
    )


if __name__ == "__main__":
    measure("plain", 1)
    measure("fsdp2", 8)
