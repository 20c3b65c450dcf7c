"""`phantom serve`: the simulator alone."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from pathlib import Path
from typing import Any

import click

from phantom.launch.errors import UsageError
from phantom.launch.processes import die_with_parent


@click.command()
@click.option(
    "--cluster", default="h100-dgx", show_default=True, metavar="NAME|FILE.toml", help="GPUs, nodes, links."
)
@click.option("--listen", default="127.0.0.1:5290", show_default=True, metavar="HOST:PORT",
              help="Address to listen on; port 0 takes a free one.")  # fmt: skip
@click.option("--kernels", type=click.Choice(["auto", "store", "measure", "predict"]), default="auto",
              show_default=True, help="Where kernel costs may come from.")  # fmt: skip
@click.option("--store", type=click.Path(path_type=Path, dir_okay=False), default=None,
              show_default="the user's cache", help="Kernel store (SQLite).")  # fmt: skip
@click.option(
    "--seed", type=int, default=0, show_default=True, help="Only source of randomness in the simulator."
)
@click.option("--network-lookahead", type=click.Choice(["on", "off"]), default="on", show_default=True,
              help="Let the network run ahead and roll back; results are the same.")  # fmt: skip
@click.option("--token-file", type=click.Path(path_type=Path, dir_okay=False), default=None,
              show_default="PHANTOM_TOKEN, else a new token that is printed",
              help="File with the token that runs must present.")  # fmt: skip
def serve(
    cluster: str,
    listen: str,
    kernels: str,
    store: Path | None,
    seed: int,
    network_lookahead: str,
    token_file: Path | None,
) -> None:
    """Serves simulated jobs until it is stopped."""
    from netsim.errors import NetsimError
    from phantom.kernels import UnknownGpuError
    from phantom.kernels.measure.kernel_store import StoreError
    from phantom.launch.simulator import FOLDER, LISTENING
    from phantom.serve import Server
    from phantom.wire import token as tokens

    parent = os.environ.pop("PHANTOM_PARENT", None)
    if parent is not None:
        die_with_parent(int(parent))
    folder = os.environ.pop(FOLDER, None)
    try:
        given = tokens.given(token_file)
        server = Server(
            cluster,
            listen=listen,
            kernels=kernels,
            store=str(store) if store is not None else None,
            seed=seed,
            lookahead=network_lookahead == "on",
            token=given,
            folder=Path(folder) if folder is not None else None,
        )
        address = server.start()
    except (NetsimError, UnknownGpuError, StoreError, OSError, ValueError) as error:
        raise UsageError(str(error)) from None
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: _stop(server))
    print(f"{LISTENING}{address}", flush=True)
    left = None
    if folder is None:
        if given is None:
            print(f"runs present this token: {tokens.VARIABLE}={server.token}", flush=True)
        # Runs of this user on this machine find it there.
        with contextlib.suppress(OSError):
            left = tokens.leave(int(address.rpartition(":")[2]), server.token)
    server.wait()
    if left is not None:
        left.unlink(missing_ok=True)


def _stop(server: Any) -> None:
    """Ends the server from a signal handler: another thread must do it, since this one may hold its locks."""
    threading.Thread(target=server.stop, name="phantom-stop").start()
