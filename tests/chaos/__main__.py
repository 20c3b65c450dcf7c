"""Runs `phantom run` again and again and hits one of its processes each time."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from phantom.launch.orphans import processes_of

ROOT = Path(__file__).parents[2]
RUN_S = 180.0
"""An undisturbed run takes a few seconds; a loaded machine gets more."""

KILL_S, INTERRUPT_S = 30.0, 10.0
VICTIMS = ("run", "simulator", "fork server", "rank 0", "rank 1")
STOPPABLE = ("simulator", "fork server")


@dataclass(frozen=True)
class Hit:
    """What is done to a run, `after_s` its ranks have started."""

    victim: str
    number: signal.Signals
    after_s: float


def draw(rng: random.Random) -> Hit:
    """A victim, a signal and a moment."""
    stops = rng.random() < 0.3
    victim = rng.choice(STOPPABLE if stops else VICTIMS)
    return Hit(victim, signal.SIGSTOP if stops else signal.SIGKILL, rng.uniform(0.0, 6.0))


class Running:
    """One `phantom run` of two ranks."""

    def __init__(self, out: Path) -> None:
        self.out = out
        # In a session of its own, so that a Ctrl-C reaches phantom run alone, as its own handling wants.
        command = [sys.executable, "-m", "phantom.cli.main", "run", "--cluster", "h100-dgx", "-G", "2"]
        self.process = subprocess.Popen(
            [*command, "--out", str(out), "examples/train_gpt.py", "--steps", "12"],
            cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
        )  # fmt: skip

    @property
    def mark(self) -> str:
        """What the environment of every process of the job holds."""
        return f"PHANTOM_STATE={self.out / '.state'}"

    def pids(self) -> dict[str, int]:
        """The run's processes that are there by now, by the names of VICTIMS."""
        found = {"run": self.process.pid}
        for child in _children(self.process.pid):
            words = Path(f"/proc/{child}/cmdline").read_text().split("\0")
            found["simulator" if "serve" in words else "fork server"] = child
        for grandchild in _children(found.get("fork server", 0)):
            rank = _variable(grandchild, "RANK")
            if rank is not None:
                found[f"rank {rank}"] = grandchild
        return found

    def end(self, timeout_s: float) -> str:
        """Its output. Raises subprocess.TimeoutExpired."""
        return self.process.communicate(timeout=timeout_s)[0]


def _children(pid: int) -> list[int]:
    try:
        return [int(text) for text in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def _variable(pid: int, name: str) -> str | None:
    try:
        entries = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return None
    values = [entry.split(b"=", 1)[1] for entry in entries if entry.startswith(name.encode() + b"=")]
    return values[0].decode() if values else None


def hit(running: Running, what: Hit) -> int | None:
    """Waits for the moment and sends the signal; None if the run had ended by then."""
    deadline_s = time.monotonic() + RUN_S
    while what.victim not in (pids := running.pids()):
        if running.process.poll() is not None or time.monotonic() > deadline_s:
            return None
        time.sleep(0.05)
    time.sleep(what.after_s)
    if running.process.poll() is not None:
        return None
    try:
        os.kill(pids[what.victim], what.number)
    except ProcessLookupError:
        return None
    return pids[what.victim]


def faults_of(output: str, running: Running, what: Hit, reference: list[Any]) -> list[str]:
    """What is not as promised after the run has ended."""
    faults = []
    time.sleep(1.0)
    if left := processes_of(running.mark):
        faults.append(f"{len(left)} processes left behind")
    file = running.out / "summary.json"
    if file.exists():
        steps = json.loads(file.read_text())["steps"]
        if steps != reference[: len(steps)]:
            faults.append("steps differ from those of an undisturbed run")
    blamed = {
        "simulator": "the simulator failed",
        "fork server": "the process that starts the ranks ended",
        "rank 0": "rank 0 was killed by SIGKILL",
        "rank 1": "rank 1 was killed by SIGKILL",
    }
    if what.number == signal.SIGSTOP:
        if "interrupted by SIGINT" not in output:
            faults.append("does not say that it was interrupted")
    elif what.victim != "run":
        for victim, words in blamed.items():
            if (words in output) != (victim == what.victim):
                faults.append(f"{'does not blame' if victim == what.victim else 'blames'} the {victim}")
    return faults


def one(seed: int, folder: Path, reference: list[Any]) -> str:
    """One run; returns what became of it, beginning with "ok" if all was as promised."""
    what = draw(random.Random(seed))
    running = Running(folder / f"run-{seed}")
    name = f"{what.victim}, {what.number.name} after {what.after_s:.1f} s"
    if hit(running, what) is None:
        output = running.end(RUN_S)
        steps = json.loads((running.out / "summary.json").read_text())["steps"]
        return f"ok ({name}: came too late)" if steps == reference else f"BITS differ ({name})\n{output}"
    if what.number == signal.SIGSTOP:
        time.sleep(0.5)
        running.process.send_signal(signal.SIGINT)
    try:
        output = running.end(INTERRUPT_S if what.number == signal.SIGSTOP else KILL_S)
    except subprocess.TimeoutExpired:
        for pid in running.pids().values():
            os.kill(pid, signal.SIGKILL)
        return f"HANGS ({name})\n{running.end(RUN_S)}"
    faults = faults_of(output, running, what, reference)
    return f"FAULT ({name}): {'; '.join(faults)}\n{output}" if faults else f"ok ({name})"


@click.command()
@click.option("--runs", type=click.IntRange(1), default=200, show_default=True)
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of the first run.")
def main(runs: int, seed: int) -> None:
    """Prints one line per run; exits 1 if one was not as promised."""
    failed = 0
    with tempfile.TemporaryDirectory(prefix="phantom-chaos-") as name:
        folder = Path(name)
        undisturbed = Running(folder / "undisturbed")
        undisturbed.end(RUN_S)
        reference = json.loads((undisturbed.out / "summary.json").read_text())["steps"]
        for number in range(seed, seed + runs):
            outcome = one(number, folder, reference)
            failed += not outcome.startswith("ok")
            click.echo(f"seed {number}: {outcome}")
    click.echo(f"{runs - failed} of {runs} runs ended as promised")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
