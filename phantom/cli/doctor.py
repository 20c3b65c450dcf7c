"""`phantom doctor`: what works on this machine, what does not, and the remedy."""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict

import click

from interpose.startup import pth
from phantom.launch import interpreter as interpreters
from phantom.launch.checks import BAD, GOOD, WARNING, check_all
from phantom.launch.errors import UsageError

_MARKS = {GOOD: "ok  ", WARNING: "note", BAD: "BAD "}
_COLOURS = {GOOD: "green", WARNING: "yellow", BAD: "red"}


@click.command()
@click.option("--python", default="", metavar="PATH", show_default="phantom's own",
              help="The job's interpreter.")  # fmt: skip
@click.option("--fix", is_flag=True, help="Build the extension and install the hook where they are missing.")
@click.option("--remove-hook", is_flag=True, help="Take phantom's hook out of that interpreter again.")
@click.option("--json", "as_json", is_flag=True, help="Print the findings as JSON.")
def doctor(python: str, fix: bool, remove_hook: bool, as_json: bool) -> int:
    """Says what works on this machine, what does not, and the remedy; exit 1 if something is bad."""
    if python:
        found = shutil.which(python)
        if found is None:
            raise UsageError(f"--python {python}: no such program")
        python = found
    if remove_hook:
        return _remove(python)
    if fix:
        interpreters.prepare(python, say=lambda text: click.echo(f"phantom: {text}", err=True))
    findings = list(check_all(python))
    if as_json:
        click.echo(json.dumps([asdict(finding) for finding in findings]))
    else:
        for finding in findings:
            mark = click.style(_MARKS[finding.state], fg=_COLOURS[finding.state])
            click.echo(f"{mark}  {finding.name:18} {finding.text}")
            if finding.remedy:
                click.echo(f"{'':24} remedy: {finding.remedy}")
    return 1 if any(finding.state == BAD for finding in findings) else 0


def _remove(python: str) -> int:
    interpreter = interpreters.own() if python == "" else interpreters.probe(python)
    try:
        removed = pth.remove(interpreter.site_packages)
    except OSError as error:
        raise UsageError(
            f"cannot remove the hook from {interpreter.site_packages}: {error.strerror}"
        ) from None
    click.echo(f"{'removed from' if removed else 'there was none in'} {interpreter.site_packages}")
    return 0
