"""`phantom cluster`: cluster descriptions."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import click

from netsim.calibrate.fit import toml_of
from netsim.calibrate.report import calibrate_files
from netsim.cluster import list_presets, load_cluster
from netsim.errors import NetsimError
from netsim.fabric import draw
from phantom.launch.errors import UsageError


@click.group()
def cluster() -> None:
    """Cluster descriptions."""


@cluster.command("list")
def list_() -> None:
    """Names of the clusters that come with phantom."""
    for name in list_presets():
        spec = load_cluster(name)
        click.echo(f"{name:20} {spec.node.gpus} x {spec.gpu.name}")


@cluster.command()
@click.argument("name")
@click.option("-N", "--nodes", type=click.IntRange(1, 1024), show_default="2, or 1 without a fabric",
              help="Servers to draw.")  # fmt: skip
@click.option("--svg", "svg_file", type=click.Path(dir_okay=False), show_default="no picture",
              help="Also draw the topology into this SVG file.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Everything the description says, as JSON, instead.")
def show(name: str, nodes: int | None, svg_file: str | None, as_json: bool) -> None:
    """Draws the topology of NAME (a preset or a file)."""
    spec = _load(name)
    if as_json:
        click.echo(json.dumps(_plain(spec), indent=1, default=str))
        return
    servers = nodes or (1 if spec.fabric.kind == "none" else 2)
    try:
        click.echo(draw.text(spec, nodes=servers))
        if svg_file:
            Path(svg_file).write_text(draw.svg(spec, nodes=servers), encoding="utf-8")
    except NetsimError as error:
        raise UsageError(str(error)) from None
    except OSError as error:
        raise UsageError(f"cannot write {svg_file}: {error.strerror}") from None


@cluster.command()
@click.option("--base", required=True, help="Preset or cluster file to start from.")
@click.option("--nccl-log", "logs", metavar="FILE", multiple=True, required=True,
              help="Standard output of nccl-tests; repeatable.")  # fmt: skip
@click.option("--kind", default="", show_default="the log's", help="Collective, where a log does not tell.")
@click.option("--nodes", default=0, show_default="the log's", help="Servers, where a log does not tell.")
@click.option("--ranks", default=0, show_default="the log's", help="GPUs, where a log does not tell.")
@click.option("--name", default="calibrated", show_default=True, help="Name of the new cluster.")
@click.option("--out", type=click.Path(dir_okay=False), show_default="printed",
              help="Write the cluster file here.")  # fmt: skip
@click.argument("more_logs", nargs=-1)
def calibrate(
    base: str,
    logs: tuple[str, ...],
    kind: str,
    nodes: int,
    ranks: int,
    name: str,
    out: str | None,
    more_logs: tuple[str, ...],
) -> None:
    """Fits latencies and efficiencies to nccl-tests logs and says how well, per size and cross-validated."""
    try:
        found = calibrate_files(base, [*logs, *more_logs], kind=kind, nodes=nodes, ranks=ranks)
        click.echo(found.table())
        toml = toml_of(found.fit, name=name, base=base)
        if out:
            Path(out).write_text(toml, encoding="utf-8")
        else:
            click.echo("\n" + toml, nl=False)
    except NetsimError as error:
        raise UsageError(str(error)) from None
    except OSError as error:
        raise UsageError(f"cannot write {out}: {error.strerror}") from None


@cluster.command()
@click.option(
    "--out", type=click.Path(dir_okay=False), help="write the cluster file here instead of printing it"
)
@click.option(
    "--ranks", type=click.IntRange(2, 16), default=2, show_default=True, help="processes of the sweep"
)
@click.option("--repetitions", type=click.IntRange(3, 1000), default=40, show_default=True, help="per size")
@click.option("--name", default="this-cpu", show_default=True, help="name of the new cluster")
def measure(out: str | None, ranks: int, repetitions: int, name: str) -> None:
    """Measures Gloo between processes of this machine and writes its CPU as a cluster."""
    from phantom.localcpu import description
    from phantom.localcpu.gloo import SweepFailed, fit_sweep, run_sweep

    try:
        fits = fit_sweep(run_sweep(ranks=ranks, repetitions=repetitions))
    except SweepFailed as error:
        raise UsageError(str(error)) from None
    for fit in fits.values():
        click.echo(
            f"{fit.kind:15} {fit.latency_s * 1e6:8.1f} us + bytes / {fit.rate_bytes_per_s / 1e9:6.2f} GB/s"
            f"   (sizes off by {fit.error:.0%})", err=True,
        )  # fmt: skip
    text = description.cluster_text(fits, ranks=ranks, name=name, device=description.default_device())
    if not out:
        click.echo(text, nl=False)
        return
    try:
        Path(out).write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot write {out}: {error.strerror}") from None


@cluster.command()
@click.argument("file")
def check(file: str) -> None:
    """Checks a cluster file; exit 2 and the reason if it is wrong."""
    spec = _load(file)
    click.echo(f"{file}: good ({spec.node.gpus} x {spec.gpu.name} per node)")


def _load(name: str) -> Any:
    try:
        return load_cluster(name)
    except NetsimError as error:
        raise UsageError(str(error)) from None
    except OSError as error:
        raise UsageError(f"cannot read {name}: {error.strerror}") from None


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value
