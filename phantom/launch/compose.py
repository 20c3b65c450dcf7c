"""Writes the docker-compose file of a job: a service `simulator`, and a service `server-K` per simulated
server.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from phantom.launch.errors import UsageError

HEADER = "# Written by phantom compose"
JOB, RESULTS, INPUTS, STORE = "/job", "/results", "/inputs", "/store"
ENTRY_POINT = "/opt/phantom/containers/entrypoint.py"
UP = "docker compose -f {file} up --abort-on-container-exit --exit-code-from simulator"
STOP_GRACE = "60s"
"""So long the simulator may take to write its results when the containers are stopped."""


@dataclass(frozen=True, kw_only=True)
class ComposeJob:
    """What the file says.

    `arguments`: options of `phantom run` for the simulator, with paths as the container sees them;
    `inputs`: files of the host by their place in the simulator's container; `mounts`: folders that every
    container sees, read-only, at the same path; `store`: folder of the kernel store. `build`: the folder
    that holds the Dockerfile, None where the image comes from elsewhere. `extras`: words for the build
    argument EXTRAS.
    """

    nodes: int
    command: tuple[str, ...]
    arguments: tuple[str, ...]
    job_folder: Path
    results: Path
    image: str
    inputs: Mapping[str, Path] = field(default_factory=dict)
    store: Path | None = None
    mounts: tuple[Path, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    build: Path | None = None
    extras: str = ""
    compiler: bool = False
    shm_size: str = "1gb"
    uid: int = 1000
    gid: int = 1000


def document(job: ComposeJob, *, folder: Path) -> dict[str, Any]:
    """The file's content; `folder` is where it will lie: what is inside that folder is named relative to
    it.
    """
    common: dict[str, Any] = {
        "image": f"${{PHANTOM_IMAGE:-{job.image}}}",
        "user": f"${{PHANTOM_UID:-{job.uid}}}:${{PHANTOM_GID:-{job.gid}}}",
        "working_dir": JOB,
        "networks": ["cluster"],
        "cap_drop": ["ALL"],
        "security_opt": ["no-new-privileges:true"],
    }
    if job.environment:
        common["environment"] = {name: _plain(value) for name, value in sorted(job.environment.items())}
    own = [_bind(path, target, folder, read_only=True) for target, path in sorted(job.inputs.items())]
    if job.store is not None:
        own.append(_bind(job.store, STORE, folder))
    simulator: dict[str, Any] = {_MERGE: common}
    if job.build is not None:
        simulator["build"] = _build(job, folder)
    simulator |= {
        "hostname": "simulator",
        "command": ["simulator", *map(_plain, job.arguments), "--", *map(_plain, job.command)],
        "volumes": [_bind(job.job_folder, JOB, folder, read_only=True), *_shared(job, folder), *own],
        "healthcheck": _health("simulator", "2s"),
        "stop_grace_period": STOP_GRACE,
    }
    server = {
        _MERGE: common,
        "pull_policy": "never" if job.build is not None else "missing",  # the simulator's build makes it
        "volumes": [_bind(job.job_folder, JOB, folder), *_shared(job, folder)],
        # Started, not healthy: a server asks until the run listens, and where the run cannot begin, its own
        # exit status comes through instead of "dependency failed to start".
        "depends_on": {"simulator": {"condition": "service_started"}},
        "shm_size": job.shm_size,
        "healthcheck": _health("server", "15s"),
        "stop_grace_period": STOP_GRACE,
    }
    services = {"simulator": simulator}
    for node in range(job.nodes):
        services[f"server-{node}"] = {
            _MERGE: server,
            "hostname": f"server-{node}",
            "command": ["server", str(node)],
        }
    return {
        "x-image": common,
        "x-server": server,
        "services": services,
        # No way in from outside and none out.
        "networks": {"cluster": {"internal": True}},
    }


def text(job: ComposeJob, *, file: Path, written_by: str) -> str:
    """The whole file. `written_by` is the command line that made it."""
    lines = [
        f"{HEADER}:  {written_by}",
        "# Start it:  " + UP.format(file=file.name),
        "# The results folder must exist and belong to the user below (PHANTOM_UID, PHANTOM_GID).",
    ]
    body = yaml.dump(document(job, folder=file.resolve().parent), Dumper=_Dumper, sort_keys=False, width=110,
                     default_flow_style=None)  # fmt: skip
    return "\n".join(lines) + "\n" + body


def write(job: ComposeJob, *, file: Path, written_by: str) -> None:
    """Writes the file. Raises UsageError where there is one that phantom did not write, or it cannot be
    written.
    """
    try:
        if file.exists() and not file.read_text(encoding="utf-8").startswith(HEADER):
            raise UsageError(
                f"{file} exists and was not written by phantom compose; give another name with --file"
            )
        file.write_text(text(job, file=file, written_by=written_by), encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot write {file}: {error.strerror}") from None


def _shared(job: ComposeJob, folder: Path) -> list[dict[str, Any]]:
    """Mounts of every container."""
    others = [_bind(path, str(path), folder, read_only=True) for path in job.mounts]
    return [_bind(job.results, RESULTS, folder), *others]


def _build(job: ComposeJob, folder: Path) -> dict[str, Any]:
    assert job.build is not None
    arguments = {"BASE_IMAGE": "${BASE_IMAGE:-python:3.11-slim}"}
    if job.extras:
        arguments["EXTRAS"] = _plain(job.extras)
    if job.compiler:
        arguments["COMPILER"] = "1"
    return {"context": _place(job.build, folder), "args": arguments}


def _plain(value: str) -> str:
    """Compose replaces $NAME in every value; $$ is a dollar sign."""
    return value.replace("$", "$$")


def _place(path: Path, folder: Path) -> str:
    """`path` relative to the compose file's folder if it lies in there, else absolute."""
    path = path.resolve()
    inside = path == folder or folder in path.parents
    return _plain(
        f"./{os.path.relpath(path, folder)}" if inside and path != folder else "." if inside else str(path)
    )


def _bind(source: Path, target: str, folder: Path, *, read_only: bool = False) -> dict[str, Any]:
    # A folder that is not there is an error, not a folder of root's.
    mount: dict[str, Any] = {"type": "bind", "source": _place(source, folder), "target": _plain(target)}
    if read_only:
        mount["read_only"] = True
    return {**mount, "bind": {"create_host_path": False}}


def _health(role: str, interval: str) -> dict[str, Any]:
    # Of servers there may be many on one machine.
    test = ["CMD", "python", ENTRY_POINT, "health", role]
    return {"test": test, "interval": interval, "timeout": "10s", "retries": 60, "start_period": "60s"}


class _Merge(str):
    """The key of a YAML merge."""


_MERGE = _Merge("<<")


class _Dumper(yaml.SafeDumper):
    """Names what occurs more than once, and writes merges as merges."""

    _names: Sequence[str] = ("image", "server")

    def generate_anchor(self, node: Any) -> str:
        """The two shared parts come first."""
        number = len([anchor for anchor in self.anchors.values() if anchor is not None])
        return self._names[number] if number < len(self._names) else f"shared-{number}"


_Dumper.add_representer(
    _Merge, lambda dumper, value: dumper.represent_scalar("tag:yaml.org,2002:merge", str(value))
)


def check_paths(command: Sequence[str], *, job_folder: Path, mounts: Sequence[Path]) -> None:
    """Every existing file that the command names by an absolute path or by one that leaves the job's folder
    must be mounted. Raises UsageError that names it.
    """
    for word in command:
        name = word.partition("=")[2] if word.startswith("--") and "=" in word else word
        path = Path(os.path.normpath(job_folder / name))
        outside = not (path == job_folder or job_folder in path.parents)
        if not outside and not os.path.isabs(name):
            continue
        if not path.is_file() and not path.is_dir():
            continue
        if any(mount == path or mount in path.parents for mount in mounts) and os.path.isabs(name):
            continue
        if _is_of_the_image(path):
            continue
        raise UsageError(
            f"{name} is not seen in the containers, which have {job_folder} at {JOB}; name it relative to "
            f"that folder, or give --mount {path if path.is_dir() else path.parent} and its absolute path"
        )


def _is_of_the_image(path: Path) -> bool:
    """Programs and devices: an image has its own."""
    return any(path.is_relative_to(root) for root in ("/usr", "/bin", "/sbin", "/dev", "/opt/venv"))
