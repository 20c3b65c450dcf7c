"""Runs a phantom command on hostile input and checks that it ends in the way that a user can read."""

from __future__ import annotations

import click
from click.testing import CliRunner

from phantom.cli.main import cli
from phantom.launch.errors import PhantomError

MEANT = (PhantomError, click.ClickException)
"""What `phantom` shows as one sentence; anything else would be a traceback."""


def ends_well(*arguments: str, stdin: bytes | None = None) -> str | None:
    """Runs `phantom ARGUMENTS`; returns the sentence of its error, None where it gave a result.

    Raises whatever the command raised that a user would see as a traceback.
    """
    done = CliRunner().invoke(cli, list(arguments), input=stdin, standalone_mode=False)
    error = done.exception
    if error is None or isinstance(error, SystemExit):
        return None
    if not isinstance(error, MEANT):
        raise error
    text = error.format_message() if isinstance(error, click.ClickException) else str(error)
    assert text
    assert len(text) < 4000, "not one sentence"
    return text
