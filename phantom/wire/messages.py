"""The JSON messages of `phantom run` and the simulator (JsonMessage in simulator.proto), as checked values.

Bounds stand here, so that nothing is built before the size of what is asked for has been checked.
"""

from __future__ import annotations

from typing import Annotated, Any, Optional, TypeVar

import msgspec
from msgspec import Meta, Struct

from phantom.wire.fields import AbortKind, Name, Text
from phantom.wire.limits import MAX_GPUS

# ruff: noqa: UP045

Nodes = Annotated[int, Meta(ge=1, le=MAX_GPUS)]
StepBound = Annotated[int, Meta(ge=0, le=1 << 62)]
Status = Annotated[int, Meta(ge=-(1 << 15), lt=1 << 16)]
JobRank = Annotated[int, Meta(ge=0, lt=MAX_GPUS)]


class Message(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A message; travels as a JSON map."""


class JobOptions(Message, frozen=True):
    """Options of `phantom run` that the simulator is told; None where the simulator's own apply."""

    kernels: Optional[Name] = None
    store: Optional[Text] = None
    seed: Optional[Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]] = None
    timeline: bool = False
    network_lookahead: Optional[bool] = None
    cpu_time: Optional[Name] = None
    unknown_values: Optional[Name] = None
    values: bool = True
    moe_routing: Optional[Text] = None
    steps: Optional[Annotated[int, Meta(ge=0, le=2**63 - 1)]] = None


class OpenJob(Message, frozen=True):
    """A job is about to start. `record_steps`: first step of the collectives' record, and first one after."""

    world_size: Nodes
    nodes: Nodes
    gpus_per_node: Nodes
    ranks_per_node: Optional[Nodes] = None
    cluster: Optional[Text] = None
    cluster_digest: Optional[Name] = None
    command: Annotated[list[Text], Meta(max_length=1 << 16)] = []
    environment: Annotated[dict[Name, Text], Meta(max_length=1 << 12)] = {}
    options: JobOptions = JobOptions()
    record_steps: Optional[tuple[StepBound, StepBound]] = None
    opened_by: Name = ""

    def __post_init__(self) -> None:
        gpus = self.nodes * self.gpus_per_node
        if gpus > MAX_GPUS:
            raise ValueError(
                f"nodes x gpus_per_node = {self.nodes} x {self.gpus_per_node} is more than {MAX_GPUS} GPUs"
            )
        if self.world_size > gpus:
            raise ValueError(
                f"world_size {self.world_size} is more than {self.nodes} nodes x {self.gpus_per_node} GPUs"
            )


class JobOpened(Message, frozen=True):
    """The job's token, and what its ranks have to know of the simulated machine (PHANTOM_CONFIG).

    `recording`: the simulator keeps files of the job that the run has to fetch.
    """

    token: Name
    config: dict[str, Any]
    recording: bool = False


class CloseJob(Message, frozen=True):
    """The job has ended. `statuses`: exit statuses by rank (or by process), as text."""

    statuses: Annotated[dict[Name, Status], Meta(max_length=1 << 18)] = {}
    interrupted: bool = False
    wall_s: Annotated[float, Meta(ge=0, le=1e12)] = 0.0


class RankExited(Message, frozen=True):
    """A rank's process has ended (negative: by that signal)."""

    rank: JobRank
    status: Status


class Aborted(Message, frozen=True):
    """Why the simulator ended the job."""

    kind: AbortKind
    message: Text


class Progress(Message, frozen=True):
    """Where a job is, and once why it was ended. `summary`: the results so far, when there is a new step."""

    virtual_s: float = 0.0
    steps: int = 0
    awaited: Text = ""
    attached: int = 0
    ranks: int = 0
    abort: Optional[Aborted] = None
    summary: Optional[dict[str, Any]] = None


class Recording(Message, frozen=True):
    """Asks for a file that the simulator keeps of a closed job."""

    file: Name


class Nothing(Message, frozen=True):
    """An empty message."""


_M = TypeVar("_M", bound=Message)


def parse(kind: type[_M], text: str) -> _M:
    """Returns a message. Raises ValueError that names the message, the field and what is wrong with it."""
    try:
        return msgspec.json.decode(text, type=kind)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        what, _, path = str(error).partition(" - at `$")
        field = path.rstrip("`").lstrip(".")
        raise ValueError(f"{kind.__name__}: {field + ': ' if field else ''}{what}") from None


def text_of(message: Message) -> str:
    """The message as JSON."""
    return msgspec.json.encode(message).decode()
