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
@click.option("--html", "as_html", is_flag=True, help="Print the path of the HTML page.")
def report(run_dir: Path, as_json: bool, as_html: bool) -> None:
    """Shows the run in RUN_DIR again."""
    path = run_dir / "summary.json"
    try:
        summary = json.loads(path.read_text())
    except OSError as error:
        raise UsageError(f"{run_dir} holds no finished run: cannot read {path} ({error.strerror})") from None
    except ValueError as error:
        raise UsageError(f"{path} is no JSON: {error}") from None
    if as_json:
        click.echo(json.dumps(summary))
    elif as_html:
        page = run_dir / "report.html"
        if not page.exists():
            raise UsageError(f"{run_dir} has no report.html")
        click.echo(str(page.resolve()))
    else:
        table.show(summary, out=run_dir)
