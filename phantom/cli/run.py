"""`phantom run`: simulates a training command."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from phantom.launch.errors import UsageError
from phantom.launch.options import RunOptions
from phantom.results.run_summary import Summary, to_json
from phantom.terminal import table


@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option(
    "--cluster", default="h100-dgx", show_default=True, metavar="NAME|FILE.toml", help="GPUs, nodes, links."
)
@click.option("-N", "--nodes", type=int, default=1, show_default=True, help="Simulated nodes.")
@click.option("-G", "--gpus-per-node", type=int, default=None,
              show_default="the command's, else the cluster's", help="Simulated GPUs per node.")  # fmt: skip
@click.option("--kernels", type=click.Choice(["auto", "store", "measure", "predict"]), default="auto",
              show_default=True, help="Where kernel costs may come from.")  # fmt: skip
@click.option("--store", type=click.Path(path_type=Path, dir_okay=False), default=None,
              show_default="the user's cache", help="Kernel store (SQLite).")  # fmt: skip
@click.option("--await-nodes", metavar="HOST:PORT", default=None, show_default="all nodes on this machine",
              help="Nodes are machines or containers that run `phantom node --join` here.")  # fmt: skip
@click.option("--server", metavar="HOST:PORT", default=None, show_default="one of its own",
              help="Use a running `phantom serve`.")  # fmt: skip
@click.option("--token-file", type=click.Path(path_type=Path, dir_okay=False), default=None,
              show_default="PHANTOM_TOKEN",
              help="File with the token of --server, or of a run that awaits nodes.")  # fmt: skip
@click.option("--out", type=click.Path(path_type=Path, file_okay=False), default=None,
              show_default="phantom-run-1, -2, ...",
              help="Folder for the results; an existing run is never overwritten.")  # fmt: skip
@click.option("--timeline", is_flag=True, help="Write a per-kernel Perfetto timeline.")
@click.option("--timeline-steps", metavar="A:B", default=None,
              show_default="all with --timeline, else the first 3",
              help="Record the detail of steps A to B-1.")  # fmt: skip
@click.option("--timeline-ranks", metavar="LIST", default=None,
              show_default="all with --timeline, else the first 64",
              help="Record the detail of these ranks, like 0,8-11.")  # fmt: skip
@click.option("--tokens-per-step", type=click.IntRange(min=1), default=None,
              help="Tokens that the whole job processes per step; gives tokens/s.")  # fmt: skip
@click.option("--samples-per-step", type=click.IntRange(min=1), default=None,
              help="Samples that the whole job processes per step; gives samples/s.")  # fmt: skip
@click.option("--memory-report", is_flag=True, help="Say what holds memory at each rank's peak.")
@click.option("--cpu-time", type=click.Choice(["model", "measured", "none"]), default="model",
              show_default=True, help="How the CPU clock advances.")  # fmt: skip
@click.option("--unknown-values", type=click.Choice(["healthy", "zeros", "error"]), default="healthy",
              show_default=True, help="What reading a value that was never computed gives.")  # fmt: skip
@click.option(
    "--values", type=click.Choice(["on", "off"]), default="on", show_default=True, help="Carry small values."
)
@click.option("--stand-ins", default="all", show_default=True, metavar="all|none|NAME,NAME",
              help="Libraries that phantom stands in for where they are not installed.")  # fmt: skip
@click.option("--moe-routing", metavar="balanced|zipf:ALPHA|FILE", default="balanced", show_default=True,
              help="How routers of mixtures of experts share out their tokens.")  # fmt: skip
@click.option("--launch", type=click.Choice(["rank", "node", "once"]), default=None,
              show_default="by COMMAND's form",
              help="Start COMMAND once per rank, per node, or once.")  # fmt: skip
@click.option("--steps", type=click.IntRange(min=1), default=None, show_default="to the script's end",
              help="Stop after N steps.")  # fmt: skip
@click.option(
    "--seed", type=int, default=0, show_default=True, help="Only source of randomness in the simulator."
)
@click.option("--network-lookahead", type=click.Choice(["on", "off"]), default="on", show_default=True,
              help="Let the network run ahead and roll back; results are the same.")  # fmt: skip
@click.option("-q", "--quiet", is_flag=True, help="Only the result and errors.")
@click.option("-v", "--verbose", is_flag=True, help="Output of all ranks, not only rank 0.")
@click.option("--json", "as_json", is_flag=True,
              help="Print summary.json instead of the table; all else goes to standard error.")  # fmt: skip
@click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="-- COMMAND ...")
def run(command: tuple[str, ...], values: str, network_lookahead: str, as_json: bool, **given: Any) -> int:
    """Simulates COMMAND: script.py args, python ..., -m module, torchrun, accelerate, a shell script,
    mpirun."""
    from phantom.launch.run import Run

    _check_server(given["server"])
    options = RunOptions(
        command=command, values=values == "on", network_lookahead=network_lookahead == "on",
        ranks_to_stderr=as_json, **given,
    )  # fmt: skip
    job = Run(options)
    verdict = job.execute()
    assert job.out is not None
    for message in verdict.messages:
        click.echo(f"phantom: {message}", err=True)
    if as_json:
        click.echo(to_json(verdict.summary))
    elif verdict.summary.steps or verdict.status == 0:
        table.show(verdict.summary, out=job.out, quiet=options.quiet)
    if verdict.summary.status == "oom" or options.memory_report:
        click.echo(_memory(job.out, verdict.summary), err=as_json)
    click.echo(f"phantom: results in {job.out}", err=True)
    return verdict.status


def _check_server(server: str | None) -> None:
    """Options that a running simulator has settled must not seem to work. Raises UsageError."""
    context = click.get_current_context()
    for name in ("kernels", "store"):
        if server is not None and context.get_parameter_source(name) is not ParameterSource.DEFAULT:
            raise UsageError(f"--{name} is settled by the simulator at {server}; give it to `phantom serve`")


def _memory(out: Path, summary: Summary) -> str:
    """What holds memory, and what would fit where it ran out."""
    from phantom.report.memory_report import memory_report, oom_report
    from phantom.timeline.recording import load
    from phantom.timeline.spool import SpoolError

    try:
        return memory_report(load(out))
    except SpoolError as error:
        return f"{oom_report(summary)}\nphantom: {error}"
