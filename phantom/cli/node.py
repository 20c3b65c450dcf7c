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
@click.option("--token-file", type=click.Path(path_type=Path, dir_okay=False), default=None,
              show_default="PHANTOM_TOKEN", help="File with the run's token.")  # fmt: skip
def node(
    join: str, number: int | None, address: str | None, ready_file: Path | None, token_file: Path | None
) -> int:
    """Joins a run, starts this node's share of its processes, and leaves with it."""
    from phantom.launch.errors import UsageError
    from phantom.launch.node import Node, own_number
    from phantom.wire import token as tokens

    try:
        token = tokens.given(token_file)
    except OSError as error:
        raise UsageError(f"--token-file {token_file}: {error.strerror}") from None
    except ValueError as error:
        raise UsageError(str(error)) from None
    return Node(
        join=join, number=own_number(number), token=token or "", address=address, ready_file=ready_file
    ).run()
