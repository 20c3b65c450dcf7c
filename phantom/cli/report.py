"""`phantom report`: shows a finished run again."""

from __future__ import annotations

from pathlib import Path

import click

from phantom.launch.errors import UsageError, cannot_write
from phantom.results.run_summary import to_json
from phantom.terminal import table


@click.command()
@click.argument("run_dir", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print summary.json.")
@click.option("--html", "as_html", is_flag=True, help="Write report.html again and print its path.")
@click.option("--memory", is_flag=True, help="Say what holds memory at each rank's peak.")
def report(run_dir: Path, as_json: bool, as_html: bool, memory: bool) -> None:
    """Shows the run in RUN_DIR again."""
    from phantom.report.memory_report import memory_report
    from phantom.report.page import PAGE, write_page
    from phantom.timeline.recording import load

    if as_json + as_html + memory > 1:
        raise UsageError("give one of --json, --html and --memory")
    try:
        recording = load(run_dir, detail=as_html or memory)
    except (OSError, ValueError) as error:  # a spool that may not be read; damage
        raise UsageError(str(error)) from None
    for gap in recording.gaps:
        click.echo(f"phantom: {gap}", err=True)
    if as_json:
        click.echo(to_json(recording.summary))
    elif as_html:
        try:
            click.echo(str(write_page(recording).resolve()))
        except OSError as error:
            raise UsageError(cannot_write(error, run_dir / PAGE)) from None
    elif memory:
        click.echo(memory_report(recording))
    else:
        table.show(recording.summary, out=run_dir)
