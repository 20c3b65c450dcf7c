"""`phantom compare`: virtual against measured step times."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from phantom.launch.errors import UsageError

if TYPE_CHECKING:
    from phantom.results.budget_report import BudgetReport
    from phantom.results.compare import Comparison
    from phantom.results.run_summary import StepTime

SHOWN = 20


@click.command()
@click.argument("run_dir", type=click.Path(path_type=Path))
@click.option("--real", "real_file", type=click.Path(path_type=Path), required=True, metavar="FILE",
              help="Measured step times in seconds (JSON).")  # fmt: skip
@click.option("--tolerance", type=click.FloatRange(min=0), default=0.1, show_default=True,
              help="Largest relative error of the median; past it the exit status is 1.")  # fmt: skip
@click.option("--skip", type=click.IntRange(min=0), default=None, show_default="1 where there are more",
              help="Leading steps that do not count.")  # fmt: skip
@click.option("--trace", "--kineto", "trace_file", type=click.Path(path_type=Path), default=None,
              metavar="TRACE.json",
              help="A torch.profiler trace of the real job: the error is split into parts.")  # fmt: skip
@click.option("--rank", type=click.IntRange(min=0), default=0, show_default=True, help="Rank of the trace.")
@click.option("--json", "as_json", is_flag=True, help="Print the comparison as JSON.")
def compare(
    run_dir: Path, real_file: Path, tolerance: float, skip: int | None, trace_file: Path | None, rank: int,
    as_json: bool,
) -> int:  # fmt: skip
    """Compares the steps of the run in RUN_DIR with measured ones."""
    from phantom.results.compare import MeasurementError, compare_steps, read_measured

    try:
        found = compare_steps(_steps(run_dir), read_measured(real_file), skip=skip)
        budget = _budget(run_dir, trace_file, rank, found.real_median_s) if trace_file is not None else None
    except MeasurementError as error:
        raise UsageError(str(error)) from None
    within = abs(found.error) <= tolerance
    if as_json:
        click.echo(json.dumps({
            "steps": [
                {"index": pair.index, "virtual_s": pair.virtual_s, "real_s": pair.real_s, "error": pair.error}
                for pair in found.pairs
            ],
            "skipped": found.skipped,
            "median": {
                "virtual_s": found.virtual_median_s, "real_s": found.real_median_s, "error": found.error
            },
            "tolerance": tolerance,
            "within": within,
            **({"budget": budget.plain()} if budget is not None else {}),
        }))  # fmt: skip
    else:
        _show(found, tolerance=tolerance, within=within)
        if budget is not None:
            click.echo("\n" + budget.text())
    return 0 if within else 1


def _budget(run_dir: Path, trace_file: Path, rank: int, real_s: float) -> BudgetReport:
    from phantom.results.budget_report import BudgetReport
    from phantom.timeline.recording import NoRun
    from phantom.timeline.spool import SpoolError

    try:
        return BudgetReport.of(run_dir, trace_file, rank=rank, real_s=real_s)
    except (NoRun, SpoolError) as error:
        raise UsageError(str(error)) from None


def _steps(run_dir: Path) -> tuple[StepTime, ...]:
    from phantom.timeline.recording import NoRun, read_summary

    try:
        return read_summary(run_dir).steps
    except NoRun as error:
        raise UsageError(str(error)) from None


def _show(found: Comparison, *, tolerance: float, within: bool) -> None:
    from phantom.terminal.units import seconds

    def row(name: str, virtual_s: float, real_s: float, error: float, note: str = "") -> None:
        text = f"{name:<8}{seconds(virtual_s):>12}{seconds(real_s):>12}{error:>+9.1%}  {note}"
        click.echo(text.rstrip())

    click.echo(f"{'step':<8}{'virtual':>12}{'real':>12}{'error':>9}")
    for place, pair in enumerate(found.pairs[:SHOWN]):
        note = "(left out)" if place < found.skipped else ""
        row(str(pair.index), pair.virtual_s, pair.real_s, pair.error, note)
    if len(found.pairs) > SHOWN:
        click.echo(f"... and {len(found.pairs) - SHOWN} more steps")
    row("median", found.virtual_median_s, found.real_median_s, found.error)
    for count, side in ((found.virtual_only, "simulated"), (found.real_only, "measured")):
        if count:
            click.echo(f"{count} step{'s were' if count > 1 else ' was'} only {side}")
    click.echo(f"error of the median is {'within' if within else 'past'} the tolerance of {tolerance:.1%}")
