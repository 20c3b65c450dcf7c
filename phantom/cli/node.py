"""`phantom node`: one simulated node of a run elsewhere."""

from __future__ import annotations

from pathlib import Path

import click


@click.command()
@click.option("--join", required=True, metavar="HOST:PORT",
              help="Where `phantom run --await-nodes` listens.")  # fmt: skip
@click.option("--node", "number", type=click.IntRange(min=0), default=None,
              show_default="the digits at the end of the host's name",
              help="Which node this is.")  # fmt: skip
@click.option("--address", metavar="NAME", default=None, show_default="the host's name",
              help="Where the other nodes reach this one.")  # fmt: skip
@click.option("--ready-file", type=click.Path(path_type=Path, dir_okay=False), default=None,
              show_default="none", help="File that is made when the node has joined.")  # fmt: skip
def node(join: str, number: int | None, address: str | None, ready_file: Path | None) -> int:
    """Joins a run, starts this node's share of its processes, and leaves with it."""
    from phantom.launch.node import Node, own_number

    return Node(join=join, number=own_number(number), address=address, ready_file=ready_file).run()
