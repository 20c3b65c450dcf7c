"""`phantom record`: a real run's step times, for `phantom compare`."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import median

import click

from phantom.launch.errors import UsageError


@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option("-G", "--ranks", type=click.IntRange(1), default=1, show_default=True,
              help="Processes on this machine, where COMMAND does not start them itself.")  # fmt: skip
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), default=Path("real.json"),
              show_default=True, help="Step times (JSON).")  # fmt: skip
@click.option("--steps", type=click.IntRange(2), default=None, help="Stop after N steps.")
@click.option(
    "--threads", type=click.IntRange(1), default=1, show_default=True, help="CPU threads of a rank."
)
@click.option("--trace", "trace_file", type=click.Path(path_type=Path, dir_okay=False), default=None,
              help="Also a torch.profiler trace of rank 0 (JSON), for the error budget.")  # fmt: skip
@click.option("--trace-steps", default="2:4", show_default=True, metavar="FIRST:LAST",
              help="Which steps it holds; their times include the profiler.")  # fmt: skip
@click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="-- COMMAND ...")
def record(
    ranks: int, out: Path, steps: int | None, threads: int, trace_file: Path | None, trace_steps: str,
    command: tuple[str, ...],
) -> int:  # fmt: skip
    """Runs COMMAND for real, without a simulator, and writes its step times."""
    from phantom.launch.record import RecordOptions
    from phantom.launch.record import record as run
    from phantom.terminal.units import seconds

    for path in (out, trace_file):
        if path is not None and not path.resolve().parent.is_dir():
            raise UsageError(f"cannot write {path}: no folder {path.resolve().parent}")
    options = RecordOptions(
        command=command, ranks=ranks, steps=steps, threads=threads, trace_file=trace_file,
        trace=_span(trace_steps),
    )  # fmt: skip
    result = run(options)
    out.write_text(json.dumps(result, indent=1) + "\n")
    times = [step["real_s"] for step in result["steps"] if not step.get("traced")]
    middle = f", median {seconds(median(times))}" if times else ""
    click.echo(f"phantom: {len(result['steps'])} steps{middle}; written to {out}", err=True)
    return 0


def _span(text: str) -> tuple[int, int]:
    first, separator, last = text.partition(":")
    if not (separator and first.isdigit() and last.isdigit() and 1 <= int(first) <= int(last)):
        raise UsageError(f"--trace-steps {text!r}: expected FIRST:LAST, such as 2:4, from step 1 on")
    return int(first), int(last)
