"""Which token a run presents to a simulator, and which one its nodes present to it."""

from __future__ import annotations

import contextlib

from phantom.launch.errors import UsageError
from phantom.launch.options import RunOptions
from phantom.wire import token as tokens


def own_token(options: RunOptions) -> str:
    """The token by which nodes join this run: the one given, else a new one. Raises UsageError."""
    return _given_token(options) or tokens.new()


def server_token(options: RunOptions, server: str) -> str:
    """The token of a simulator elsewhere: the one given, else what it left for this user on this machine.

    Raises UsageError where there is none.
    """
    found = _given_token(options)
    port = server.rpartition(":")[2]
    if found is None and port.isdigit():
        with contextlib.suppress(OSError, ValueError):
            found = tokens.given(tokens.file_of(int(port)))
    if found is None:
        raise UsageError(
            f"--server {server}: its token is missing; give what `phantom serve` printed in "
            f"{tokens.VARIABLE} or by --token-file"
        )
    return found


def _given_token(options: RunOptions) -> str | None:
    try:
        return tokens.given(options.token_file)
    except OSError as error:
        raise UsageError(f"--token-file {options.token_file}: {error.strerror}") from None
    except ValueError as error:
        raise UsageError(str(error)) from None
