"""Rounds of the fuzz tests for some minutes; status 1 where one failed or took too much memory."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import time
from pathlib import Path

import click

from tests.fuzz.limits import MEMORY_BYTES

FOLDER = Path(__file__).parent


def run_file(file: Path, *, seed: int, examples: int) -> tuple[int, int]:
    """Runs one file's tests in a process of its own; returns its exit status and peak memory in bytes."""
    command = [sys.executable, "-m", "pytest", "-n0", "-q", "-p", "no:cacheprovider", str(file)]
    environment = {**os.environ, "PHANTOM_FUZZ_EXAMPLES": str(examples)}
    process = subprocess.Popen([*command, f"--hypothesis-seed={seed}"], env=environment)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return process.returncode, usage.ru_maxrss * 1024


@click.command()
@click.option("--minutes", type=click.FloatRange(min=0), default=10.0, show_default=True)
@click.option("--seed", type=int, default=None, help="Seed of the first round.")
@click.option(
    "--examples", type=click.IntRange(1), default=200, show_default=True, help="Per test and round."
)
def main(minutes: float, seed: int | None, examples: int) -> None:
    """Runs all files round after round, each round with a seed of its own."""
    end_s = time.monotonic() + 60 * minutes
    failed = 0
    while True:
        seed = secrets.randbelow(1 << 31) if seed is None else seed
        for file in sorted(FOLDER.glob("test_*.py")):
            status, peak_bytes = run_file(file, seed=seed, examples=examples)
            click.echo(f"{file.name}: seed {seed}, status {status}, {peak_bytes >> 20} MiB")
            failed += status != 0 or peak_bytes > MEMORY_BYTES
            if time.monotonic() > end_s:
                sys.exit(1 if failed else 0)
        seed = None


if __name__ == "__main__":
    main()
