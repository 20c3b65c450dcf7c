"""What `phantom run` tells a process through its environment."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from phantom.wire.token import VARIABLE

ATTACH = "PHANTOM"
SERVER = "PHANTOM_SERVER"
CONFIG = "PHANTOM_CONFIG"
NODE = "PHANTOM_NODE"
RANK_PID = "PHANTOM_RANK_PID"  # set by a process that has become a rank: its children never become one
STATE = "PHANTOM_STATE"  # folder for the marks by which `phantom run` learns that a process attached
TOKEN = VARIABLE  # admits this job's processes to the simulator
NODE_LOG = "PHANTOM_NODE_LOG"  # file that the launcher of this process writes to


class BadEnvironment(RuntimeError):
    """A PHANTOM_* variable is missing or malformed; the text names it and its value."""


@dataclass(frozen=True)
class Environment:
    """The PHANTOM_* variables and the ones that torch's launchers set, as values.

    `config` is the map of PHANTOM_CONFIG (docs/architecture.md). `rank` is None where RANK is unset or where
    this process is the child of a rank.
    """

    server: str
    config: dict[str, Any] = field(default_factory=dict)
    rank: int | None = None
    world_size: int | None = None
    local_rank: int | None = None
    node: int = 0
    state: str | None = None
    node_log: str | None = None
    child_of_rank: bool = False
    token: str = ""

    @property
    def may_become_rank(self) -> bool:
        """Whether a first use of the device makes this process a rank."""
        return self.rank is not None and not self.child_of_rank


def _integer(variables: Mapping[str, str], name: str) -> int | None:
    text = variables.get(name)
    if text is None or text == "":
        return None
    try:
        return int(text)
    except ValueError:
        raise BadEnvironment(f"environment variable {name}={text!r} is not an integer") from None


# What MPI launchers set instead of torch's variables (Open MPI; MPICH, Intel MPI and srun's PMI).
_MPI_VARIABLES = {
    "RANK": ("OMPI_COMM_WORLD_RANK", "PMI_RANK"),
    "WORLD_SIZE": ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE"),
    "LOCAL_RANK": ("OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID"),
}


def _place(variables: Mapping[str, str], name: str) -> int | None:
    """RANK and the like; where they are unset, what an MPI launcher set.

    A script that `mpirun` started may use the device before it copies the one to the other.
    """
    for candidate in (name, *_MPI_VARIABLES[name]):
        found = _integer(variables, candidate)
        if found is not None:
            return found
    return None


def _slow_host(config: dict[str, Any], node: int) -> None:
    """Applies the what-if speed of this node's host ([degrade] hosts) to the modelled host times."""
    factor = (config.get("host_factor") or {}).get(str(node))
    if factor:
        config["host"] = {name: round(value / factor) for name, value in (config.get("host") or {}).items()}


def read(variables: Mapping[str, str] | None = None) -> Environment:
    """Reads the environment of this process.

    Raises BadEnvironment for a missing PHANTOM_SERVER, a PHANTOM_CONFIG that is no JSON map, or a rank that
    is no number.
    """
    variables = os.environ if variables is None else variables
    text = variables.get(CONFIG, "{}")
    if text.startswith("@"):
        try:
            with open(text[1:], encoding="utf-8") as file:
                text = file.read()
        except OSError as error:
            raise BadEnvironment(f"{CONFIG} names a file that cannot be read: {error}") from None
    try:
        config = json.loads(text)
    except ValueError as error:
        raise BadEnvironment(f"{CONFIG} is not JSON: {error}") from None
    if not isinstance(config, dict):
        raise BadEnvironment(f"{CONFIG} must be a JSON map, got {type(config).__name__}")
    owner = variables.get(RANK_PID)
    node = _integer(variables, NODE)
    if node is None:
        node = _integer(variables, "GROUP_RANK") or 0
    _slow_host(config, node)
    return Environment(
        server=variables.get(SERVER, ""),
        config=config,
        rank=_place(variables, "RANK"),
        world_size=_place(variables, "WORLD_SIZE"),
        local_rank=_place(variables, "LOCAL_RANK"),
        node=node,
        state=variables.get(STATE) or None,
        node_log=variables.get(NODE_LOG) or None,
        child_of_rank=owner is not None and owner != str(os.getpid()),
        token=variables.get(TOKEN, ""),
    )
