"""`phantom serve`: the simulator alone."""

from __future__ import annotations

import os
from pathlib import Path

import click


@click.command()
@click.option(
    "--cluster", default="h100-dgx", show_default=True, metavar="NAME|FILE.toml", help="GPUs, nodes, links."
)
@click.option("--listen", default="127.0.0.1:5290", show_default=True, metavar="HOST:PORT",
              help="Address to listen on; port 0 takes a free one.")  # fmt: skip
@click.option("--kernels", type=click.Choice(["auto", "store", "measure", "predict"]), default="auto",
              show_default=True, help="Where kernel costs may come from.")  # fmt: skip
@click.option(
    "--store", type=click.Path(path_type=Path, dir_okay=False), default=None, help="Kernel store (SQLite)."
)
@click.option(
    "--seed", type=int, default=0, show_default=True, help="Only source of randomness in the simulator."
)
@click.option("--network-lookahead", type=click.Choice(["on", "off"]), default="on", show_default=True,
              help="Let the network run ahead and roll back; results are the same.")  # fmt: skip
def serve(
    cluster: str, listen: str, kernels: str, store: Path | None, seed: int, network_lookahead: str
) -> None:
    """Serves simulated jobs until it is stopped."""
    from interpose.forkserver import die_with_parent

    parent = os.environ.pop("PHANTOM_PARENT", None)
    if parent is not None:
        die_with_parent(int(parent))
