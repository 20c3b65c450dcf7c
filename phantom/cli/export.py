"""`phantom export`: a recorded run in the formats of other tools."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from phantom.launch.errors import UsageError, cannot_write


@click.command()
@click.argument("run_dir", type=click.Path(path_type=Path))
@click.option("--chakra", type=click.Path(path_type=Path), metavar="PREFIX", default=None,
              help="Chakra traces for ASTRA-sim: PREFIX.RANK.et and PREFIX.groups.json.")  # fmt: skip
@click.option("--timeline", type=click.Path(path_type=Path), metavar="FILE", default=None,
              help="Perfetto timeline.")  # fmt: skip
@click.option("--memory-snapshot", type=click.Path(path_type=Path), metavar="FILE", default=None,
              help="Pickle for PyTorch's memory viewer, of the rank of --rank.")  # fmt: skip
@click.option("--kineto", type=click.Path(path_type=Path), metavar="DIR", default=None,
              help="One PyTorch profiler trace per rank, for Holistic Trace Analysis.")  # fmt: skip
@click.option("--steps", metavar="A:B", default=None, show_default="all recorded",
              help="Only steps A to B-1; not of the memory snapshot.")  # fmt: skip
@click.option("--ranks", metavar="LIST", default=None, show_default="all recorded",
              help="Only these ranks of the timeline, like 0,8-11.")  # fmt: skip
@click.option("--rank", type=int, default=0, show_default=True, help="Rank of the memory snapshot.")
def export(
    run_dir: Path,
    chakra: Path | None,
    timeline: Path | None,
    memory_snapshot: Path | None,
    kineto: Path | None,
    steps: str | None,
    ranks: str | None,
    rank: int,
) -> None:
    """Writes the run in RUN_DIR in other tools' formats, from the detail that it recorded."""
    from phantom.export.chakra.export import export_chakra
    from phantom.export.kineto import write_kineto
    from phantom.export.memory_snapshot import write_snapshot
    from phantom.timeline.recording import load
    from phantom.timeline.settings import parse_ranks, parse_steps
    from phantom.timeline.write import write_timeline

    if not (chakra or timeline or memory_snapshot or kineto):
        raise UsageError("nothing to export: give --chakra, --timeline, --memory-snapshot or --kineto")
    try:
        wanted = parse_steps(steps, option="--steps") if steps is not None else None
        recording = load(run_dir)
    except (OSError, ValueError) as error:
        raise UsageError(str(error)) from None
    for gap in recording.gaps:
        click.echo(f"phantom: {gap}", err=True)
    if chakra:
        with _reported(chakra):
            for path in export_chakra(recording, chakra, steps=wanted):
                click.echo(str(path))
    if timeline:
        world_size = recording.summary.world_size
        with _reported(timeline):
            chosen = None
            if ranks is not None:
                chosen = parse_ranks(ranks, world_size=world_size, option="--ranks")
            click.echo(str(write_timeline(recording, timeline, steps=wanted, ranks=chosen).path))
    if kineto:
        with _reported(kineto):
            for path in write_kineto(recording, kineto, steps=wanted):
                click.echo(str(path))
    if memory_snapshot:
        if rank not in recording.ranks:
            raise UsageError(f"{run_dir}: rank {rank} of --rank was not recorded ({recording.extent})")
        with _reported(memory_snapshot):
            click.echo(str(write_snapshot(recording.ranks[rank], memory_snapshot)))


@contextmanager
def _reported(path: Path) -> Iterator[None]:
    """Says what was asked wrongly, or why `path` cannot be written."""
    try:
        yield
    except ValueError as error:
        raise UsageError(str(error)) from None
    except OSError as error:
        raise UsageError(cannot_write(error, path)) from None
