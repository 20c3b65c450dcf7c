"""Jobs that this machine's CPU runs for real, simulated: `python -m tests.accuracy.cpu`.

Every round measures Gloo, then runs each job for real and simulated in turn, with its kernels measured anew,
so that a machine that changes its speed changes both sides. The result goes to docs/accuracy-cpu.md.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from . import cpu_page

ROOT = Path(__file__).resolve().parents[2]
JOBS_FOLDER = Path(__file__).parent / "jobs"
MEDIAN_LIMIT, WORST_LIMIT = 0.08, 0.15
"""Largest error allowed for the median job and for the worst, or twice the real runs' spread where larger."""


@dataclass(frozen=True, kw_only=True)
class CpuJob:
    """One job: its script in jobs/, arguments, ranks, and steps of a run."""

    name: str
    script: str
    arguments: tuple[str, ...] = ()
    ranks: int = 1
    steps: int = 14

    def command(self, device: str, steps: int) -> list[str]:
        """The command line."""
        return [str(JOBS_FOLDER / self.script), *self.arguments, "--device", device, "--steps", str(steps)]


KEEP_FREED_MEMORY = {
    "MALLOC_MMAP_THRESHOLD_": str(4 << 30),
    "MALLOC_TRIM_THRESHOLD_": str(4 << 30),
    "MALLOC_TOP_PAD_": str(64 << 20),
}
"""Settings of glibc for real and simulated runs: freed memory is kept, so no step faults pages in anew.

Without them the steps of the same real MLP have 4,600 or 6,900 page faults, by chance from run to run, and
take 39 or 47 ms.
"""

JOBS = (
    CpuJob(name="MLP, one process", script="single.py", arguments=("--model", "mlp")),
    CpuJob(name="CNN, one process", script="single.py", arguments=("--model", "cnn")),
    CpuJob(name="GPT, one process", script="single.py", arguments=("--model", "gpt")),
    CpuJob(name="MLP, DDP", script="ddp.py", arguments=("--model", "mlp"), ranks=2),
    CpuJob(name="CNN, DDP", script="ddp.py", arguments=("--model", "cnn"), ranks=2),
    CpuJob(name="GPT, DDP", script="ddp.py", arguments=("--model", "gpt"), ranks=2),
    CpuJob(name="GPT, FSDP2", script="fsdp2.py", arguments=("--model", "gpt"), ranks=2),
    CpuJob(name="MLP, FSDP2", script="fsdp2.py", arguments=("--model", "mlp"), ranks=2),
    CpuJob(name="GPT, tensor parallel", script="tp.py", ranks=2),
    CpuJob(name="GPT, pipeline 1F1B", script="pp.py", ranks=2),
)


def _spread(values: Sequence[float]) -> float:
    if len(values) < 2:
        return 0.0
    first, _, third = quantiles(values, n=4, method="inclusive")
    return (third - first) / median(values)


@dataclass
class Result:
    """What was measured of one job, seconds: the median step of every real and simulated run, in order."""

    job: CpuJob
    real_s: list[float] = field(default_factory=list)
    virtual_s: list[float] = field(default_factory=list)
    measured_share: float = 0.0
    budget: dict[str, Any] | None = None
    failure: str = ""

    @property
    def real(self) -> float:
        return median(self.real_s)

    @property
    def virtual(self) -> float:
        return median(self.virtual_s)

    @property
    def error(self) -> float:
        """(virtual - real) / real."""
        return self.virtual / self.real - 1

    @property
    def spread(self) -> float:
        """Distance between the quartiles of the real runs over their median."""
        return _spread(self.real_s)

    @property
    def virtual_spread(self) -> float:
        """The same of the simulated runs."""
        return _spread(self.virtual_s)

    def within(self, limit: float) -> bool:
        """Whether the error is at most `limit`, or twice the spread where that is larger."""
        return not self.failure and abs(self.error) <= max(limit, 2 * self.spread)


class Runner:
    """Runs phantom in a folder of its own. `clock`: "wall", or "cpu" for a machine that others load too."""

    def __init__(self, folder: Path, *, clock: str = "wall") -> None:
        self._folder = folder
        self._clock = clock
        self._count = 0
        self._environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("PHANTOM")},
            **KEEP_FREED_MEMORY,
            "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])),
        }

    def phantom(self, *arguments: str, allowed: Sequence[int] = (0,)) -> subprocess.CompletedProcess[str]:
        """Runs a command; raises RuntimeError with its output where it fails."""
        done = subprocess.run(
            [sys.executable, "-m", "phantom.cli.main", *arguments],
            cwd=self._folder, env=self._environment, capture_output=True, text=True, timeout=400,
        )  # fmt: skip
        if done.returncode not in allowed:
            raise RuntimeError(
                f"phantom {' '.join(arguments)}: status {done.returncode}\n{done.stderr[-2000:]}"
            )
        return done

    def real(self, job: CpuJob, *, device: str = "cpu", trace: Path | None = None) -> float:
        """Runs the job for real on `device`; the median step (s) after the third, untraced ones only."""
        out = self._folder / "real.json"
        options = ["--ranks", str(job.ranks), "--out", str(out)]
        if trace is not None:
            options += ["--trace", str(trace), "--trace-steps", f"{job.steps - 4}:{job.steps - 2}"]
        self.phantom("record", *options, "--", *job.command(device, job.steps))
        steps = json.loads(out.read_text())["steps"]
        key = "cpu_s" if self._clock == "cpu" else "real_s"
        return median(step[key] for step in steps if step["index"] > 2 and not step.get("traced"))

    def simulated(
        self, job: CpuJob, *, cluster: Path, store: Path, cpu_time: str = "measured"
    ) -> tuple[float, float, Path]:
        """Simulates the job: median step in seconds, measured share of kernel time, the run's folder."""
        self._count += 1
        out = self._folder / f"run-{self._count}"
        self.phantom(
            "run", "--quiet", "--cluster", str(cluster), "-G", str(job.ranks), "--kernels", "measure",
            "--store", str(store), "--cpu-time", cpu_time, "--timeline-steps", "3:8", "--out", str(out),
            "--", *job.command("cuda", job.steps),
        )  # fmt: skip
        summary = json.loads((out / "summary.json").read_text())
        times = [step["virtual_s"] for step in summary["steps"] if step["index"] > 2]
        return median(times), summary["coverage"]["measured"], out

    def budget(self, run: Path, trace: Path, real_s: float) -> dict[str, Any]:
        """The error budget of a run against a trace."""
        file = self._folder / "median.json"
        file.write_text(json.dumps({"steps": [{"index": 5, "real_s": real_s}]}))
        done = self.phantom(
            "compare", str(run), "--real", str(file), "--trace", str(trace), "--json", allowed=(0, 1)
        )
        found: dict[str, Any] = json.loads(done.stdout)["budget"]
        return found


def measure(
    jobs: Sequence[CpuJob], *, rounds: int, clock: str = "wall", budgets: bool = True
) -> list[Result]:
    """Runs all jobs `rounds` times for real and simulated, and once more for real, traced."""
    results = [Result(job) for job in jobs]
    with tempfile.TemporaryDirectory(prefix="phantom-accuracy-") as name:
        folder = Path(name)
        runner = Runner(folder, clock=clock)
        for number in range(rounds):
            cluster, store = folder / f"cluster-{number}.toml", folder / f"kernels-{number}.sqlite"
            runner.phantom("cluster", "measure", "--out", str(cluster))
            for result in results:
                _round(runner, result, cluster, store, trace=budgets and number == rounds - 1)
    return results


def _round(runner: Runner, result: Result, cluster: Path, store: Path, *, trace: bool) -> None:
    if result.failure:
        return
    job = result.job
    started = time.monotonic()
    try:
        result.real_s.append(runner.real(job))
        virtual_s, share, run = runner.simulated(job, cluster=cluster, store=store)
        result.virtual_s.append(virtual_s)
        result.measured_share = share
        if trace:
            path = cluster.with_name("trace.json")
            result.real_s.append(runner.real(job, trace=path))
            result.budget = runner.budget(run, path, result.real)
    except (RuntimeError, OSError, ValueError, KeyError, subprocess.TimeoutExpired) as error:
        result.failure = str(error)
        print(f"{job.name}: {error}", file=sys.stderr, flush=True)
        return
    print(
        f"{job.name}: real {result.real_s[-1] * 1e3:.1f} ms, virtual {virtual_s * 1e3:.1f} ms, "
        f"{result.error:+.1%} so far ({time.monotonic() - started:.0f} s)", file=sys.stderr, flush=True,
    )  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures, prints the table and writes the page; status 1 where the errors are past the limits."""
    parser = argparse.ArgumentParser(prog="python -m tests.accuracy.cpu")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--jobs", default="", help="only jobs whose names hold one of these, a comma between")
    parser.add_argument("--clock", choices=["wall", "cpu"], default="wall",
                        help="cpu: CPU time of real runs, for one rank on a loaded machine")  # fmt: skip
    parser.add_argument("--out", type=Path, default=None, help="page to write")
    given = parser.parse_args(arguments)
    wanted = [text for text in given.jobs.split(",") if text]
    jobs = [job for job in JOBS if not wanted or any(text in job.name for text in wanted)]
    started = time.monotonic()
    results = measure(jobs, rounds=given.rounds, clock=given.clock)
    page = cpu_page.page(results, rounds=given.rounds, took_s=time.monotonic() - started)
    print(page)
    if given.out is not None:
        given.out.write_text(page)
    return 0 if cpu_page.accepted(results) else 1


if __name__ == "__main__":
    sys.exit(main())
