"""`phantom compose`: writes the docker-compose file of a job."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from phantom.cli.run import run
from phantom.launch.errors import UsageError

NOT_FOR_CONTAINERS = ("await_nodes", "server", "token_file", "out", "as_json", "command")
"""Options of `phantom run` that the containers settle themselves."""

FORWARDED = [option for option in run.params if option.name not in NOT_FOR_CONTAINERS]
ROOT_USER = 0
IMAGE_USER = 1000


@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option("--file", type=click.Path(path_type=Path, dir_okay=False, allow_dash=True),
              default=Path("docker-compose.yml"), show_default=True,
              help="The file to write; - is the terminal.")  # fmt: skip
@click.option("--results", type=click.Path(path_type=Path, file_okay=False),
              default=Path("phantom-results"), show_default=True,
              help="Folder of this machine for the results of every run of the file.")  # fmt: skip
@click.option("--image", default="phantom-sim", show_default=True, help="Name of the image.")
@click.option("--extras", default="", show_default="none", metavar="WORDS",
              help="What the image also installs: extras of pyproject.toml, packages of PyPI.")  # fmt: skip
@click.option("--compiler", is_flag=True, help="Keep a C++ compiler in the image, for torch.compile.")
@click.option("-e", "--env", multiple=True, metavar="NAME[=VALUE]",
              help="Environment variable of the job; without a value the caller's.")  # fmt: skip
@click.option("--mount", "mounts", type=click.Path(path_type=Path, exists=True, file_okay=False),
              multiple=True, help="Folder that the containers see read-only at the same path.")  # fmt: skip
@click.option("--shm-size", default="1gb", show_default=True, metavar="SIZE",
              help="/dev/shm of each server.")  # fmt: skip
@click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="-- COMMAND ...")
@click.pass_context
def compose(
    context: click.Context,
    command: tuple[str, ...],
    file: Path,
    results: Path,
    image: str,
    extras: str,
    compiler: bool,
    env: tuple[str, ...],
    mounts: tuple[Path, ...],
    shm_size: str,
    **given: Any,
) -> None:
    """Writes a docker-compose file that runs COMMAND with a container per simulated server.

    The options of `phantom run` mean what they mean there.
    """
    from interpose.startup import pth
    from phantom.launch.command import ONCE, parse
    from phantom.launch.compose import ComposeJob, check_paths, text, write
    from phantom.launch.plan import size_job
    from phantom.launch.run import cluster_gpus

    job_folder = Path.cwd()
    parsed = parse(command, launch=given["launch"], elsewhere=True)
    size = size_job(parsed, nodes=given["nodes"], gpus_per_node=given["gpus_per_node"],
                    cluster_gpus=cluster_gpus(given["cluster"]))  # fmt: skip
    if parsed.launch == ONCE and size.nodes > 1:
        raise UsageError(f"{command[0]} is started once and cannot reach other containers; use torchrun")
    folders = tuple(path.resolve() for path in mounts)
    check_paths(command, job_folder=job_folder, mounts=folders)
    inputs: dict[str, Path] = {}
    store = given["store"].resolve() if given["store"] is not None else None
    arguments = list(_forwarded(context, given, inputs))
    root = Path(pth.root())
    user, group = (os.getuid(), os.getgid()) if os.getuid() != ROOT_USER else (IMAGE_USER, IMAGE_USER)
    job = ComposeJob(
        nodes=size.nodes,
        command=command,
        arguments=tuple(arguments),
        job_folder=job_folder,
        results=results,
        image=image,
        inputs=inputs,
        store=store.parent if store is not None else None,
        mounts=folders,
        environment=dict(_environment(env)),
        build=root if (root / "Dockerfile").exists() else None,
        extras=extras,
        compiler=compiler,
        shm_size=shm_size,
        uid=user,
        gid=group,
    )
    written_by = shlex.join(["phantom", "compose", *sys.argv[2:]])
    if str(file) == "-":
        click.echo(text(job, file=job_folder / "docker-compose.yml", written_by=written_by), nl=False)
        return
    for folder in (results, store.parent if store is not None else None):
        if folder is not None:
            _make(folder, user, group)
    write(job, file=file, written_by=written_by)
    option = (
        "" if file.name == "docker-compose.yml" and file.parent == Path() else f"-f {shlex.quote(str(file))} "
    )
    click.echo(
        f"phantom: {file}: simulator and {size.nodes} servers of {size.gpus_per_node} GPUs\n"
        f"phantom: start it with: docker compose {option}up --abort-on-container-exit "
        f"--exit-code-from simulator\n"
        f"phantom: results come to {results}",
        err=True,
    )


compose.params = [*FORWARDED, *compose.params]


def _forwarded(context: click.Context, given: dict[str, Any], inputs: dict[str, Path]) -> Iterator[str]:
    """The options of `phantom run` that were given; files are noted in `inputs` and named as the container
    sees them.
    """
    from phantom.launch.compose import INPUTS, STORE

    for option in FORWARDED:
        assert isinstance(option, click.Option)
        assert option.name is not None
        if context.get_parameter_source(option.name) is ParameterSource.DEFAULT:
            continue
        name, value = max(option.opts, key=len), given[option.name]
        if option.is_flag:
            yield name
            continue
        if option.name == "store":
            value = f"{STORE}/{Path(value).name}"
        elif isinstance(value, (str, Path)) and Path(value).is_file():
            target = f"{INPUTS}/{option.name}/{Path(value).name}"
            inputs[target] = Path(value).resolve()
            value = target
        yield from (name, str(value))


def _environment(given: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """What the job's processes find in their environment: -e, and what changes NCCL and the allocator."""
    from phantom.launch.run import ENVIRONMENT_PREFIXES

    yield from ((name, value) for name, value in os.environ.items() if name.startswith(ENVIRONMENT_PREFIXES))
    for text in given:
        name, equals, value = text.partition("=")
        if not name or (not equals and name not in os.environ):
            raise UsageError(f"--env {text}: give NAME=VALUE, or the name of a variable that is set")
        yield name, value if equals else os.environ[name]


def _make(folder: Path, user: int, group: int) -> None:
    """Makes a folder that the containers can write to. Raises UsageError."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if os.getuid() == ROOT_USER:
            os.chown(folder, user, group)  # the containers do not run as root
    except OSError as error:
        raise UsageError(f"cannot make {folder}: {error.strerror}") from None
