"""`phantom cluster`: cluster descriptions."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import click

from netsim.cluster import list_presets, load_cluster
from netsim.errors import NetsimError
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
def show(name: str) -> None:
    """Everything that NAME (or a file) says, as JSON."""
    click.echo(json.dumps(_plain(_load(name)), indent=1, default=str))


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
