"""What a container of the image does: `simulator [options of phantom run] -- COMMAND`, `server NODE`,
`health ROLE`.

Anything else is executed as it stands, so that `docker run IMAGE phantom doctor` works. The simulator waits
for the servers, which run the job's launcher and hold the ranks; both replace this process, so that what
they end with is what the container ends with.
"""

from __future__ import annotations

import itertools
import os
import secrets
import socket
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

PORT = 5291
RESULTS = Path("/results")
TOKEN = RESULTS / ".phantom-token"
"""The run's token: the results folder is what all containers of a run, and no others, share."""

READY = Path("/tmp/phantom-joined")
ADDRESS = f"simulator:{PORT}"
USAGE = 2


def run_folder(results: Path) -> Path:
    """The first phantom-run-<n> that is free in the mounted folder. Raises PermissionError where it cannot
    be made.
    """
    folder = next(path for n in itertools.count(1) if not (path := results / f"phantom-run-{n}").exists())
    folder.mkdir()
    return folder


def simulator(arguments: Sequence[str], *, out: Path) -> list[str]:
    """The command line of the run, which serves the ranks and waits for the servers."""
    options = ["--await-nodes", f"0.0.0.0:{PORT}", "--token-file", str(TOKEN), "--out", str(out)]
    return ["phantom", "run", *options, *arguments]


def server(node: str) -> list[str]:
    """The command line of one simulated server."""
    options = ["--join", ADDRESS, "--node", node, "--token-file", str(TOKEN), "--ready-file", str(READY)]
    return ["phantom", "node", *options]


def leave_token(file: Path) -> None:
    """Writes a new token where only those see it who see the results folder. Raises OSError."""
    file.unlink(missing_ok=True)
    with open(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as out:
        out.write(secrets.token_urlsafe(24) + "\n")


def await_token(file: Path, *, timeout_s: float = 120.0) -> None:
    """Waits until the simulator has left its token; without it the run refuses this server."""
    deadline_s = time.monotonic() + timeout_s
    while not is_listening() and time.monotonic() < deadline_s:
        time.sleep(0.2)
    while not file.exists() and time.monotonic() < deadline_s:
        time.sleep(0.2)


def is_listening() -> bool:
    """Whether the run waits for servers: its token is this run's by then, not an earlier one's."""
    try:
        socket.create_connection(("simulator", PORT), timeout=2).close()
    except OSError:
        return False
    return True


def is_healthy(role: str) -> bool:
    """Whether the simulator listens, or this server has joined."""
    if role == "server":
        return READY.exists()
    try:
        socket.create_connection(("127.0.0.1", PORT), timeout=2).close()
    except OSError:
        return False
    return True


def _replace(command: Sequence[str]) -> NoReturn:
    try:
        os.execvp(command[0], list(command))
    except OSError as error:
        sys.exit(f"phantom: cannot run {command[0]}: {error.strerror}")


def main(arguments: Sequence[str]) -> NoReturn:
    """Does what the words say."""
    role, rest = (arguments[0], arguments[1:]) if arguments else ("phantom", [])
    if role == "health":
        sys.exit(0 if is_healthy(rest[0]) else 1)
    if role == "server":
        READY.unlink(missing_ok=True)
        await_token(TOKEN)
        _replace(server(rest[0]))
    if role == "simulator":
        try:
            out = run_folder(RESULTS)
            leave_token(TOKEN)
        except OSError as error:
            sys.stderr.write(
                f"phantom: cannot write to the results folder ({error.strerror}) as user {os.getuid()}: "
                f"make the folder that is mounted at {RESULTS} first, and let it belong to that user "
                f"(PHANTOM_UID)\n"
            )
            sys.exit(USAGE)
        _replace(simulator(rest, out=out))
    _replace([role, *rest])


if __name__ == "__main__":
    main(sys.argv[1:])
