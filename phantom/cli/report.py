"""`phantom report`: shows a finished run again."""

from __future__ import annotations

import json
from pathlib import Path

import click

from phantom.launch.errors import UsageError
from phantom.terminal import table


@click.command()
@click.argument("run_dir", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print summary.json.")
@click.option("--html", "as_html", is_flag=True, help="Write report.html again and print its path.")
@click.option("--memory", is_flag=True, help="Say what holds memory at each rank's peak.")
def report(run_dir: Path, as_json: bool, as_html: bool, memory: bool) -> None:
    """Shows the run in RUN_DIR again."""
    from phantom.report.memory_report import memory_report
    from phantom.report.page import write_page
    from phantom.timeline.recording import load

    try:
        recording = load(run_dir, detail=as_html or memory)
    except (OSError, ValueError) as error:
        raise UsageError(str(error)) from None
    if as_json:
        click.echo(json.dumps(recording.summary))
    elif as_html:
        click.echo(str(write_page(recording).resolve()))
    elif memory:
        click.echo(memory_report(recording))
    else:
        table.show(recording.summary, out=run_dir)
