"""What a run and its nodes elsewhere say to each other, as checked values; JSON lines (link.py)."""

from __future__ import annotations

from typing import Annotated, Optional, Union

import msgspec
from msgspec import Meta, Struct

from phantom.wire.limits import MAX_GPUS

# ruff: noqa: UP007, UP045

PROTOCOL = 2

Host = Annotated[str, Meta(min_length=1, max_length=253, pattern=r"^[A-Za-z0-9._:\[\]-]+$")]
Port = Annotated[int, Meta(ge=1, le=65535)]
Number = Annotated[int, Meta(ge=0, lt=MAX_GPUS)]
Status = Annotated[int, Meta(ge=-128, le=255)]
SignalNumber = Annotated[int, Meta(ge=1, le=64)]
Name = Annotated[str, Meta(max_length=64, pattern=r"^[A-Za-z0-9 ]+$")]
Text = Annotated[str, Meta(max_length=1 << 16)]


class FromNode(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="event"):
    """A message of a node."""


class Hello(FromNode, tag="hello", frozen=True):
    """The first message. `address` and `port`: where the other nodes may reach this one."""

    protocol: int
    node: Number
    host: Host
    address: Host
    port: Port
    token: Annotated[str, Meta(max_length=256)] = ""


class Prepared(FromNode, tag="prepared", frozen=True):
    """The node could start its processes."""


class Failed(FromNode, tag="failed", frozen=True):
    """The node cannot take part."""

    reason: Text = ""


class Said(FromNode, tag="said", frozen=True):
    """Something for the user."""

    text: Text


class Interrupted(FromNode, tag="interrupted", frozen=True):
    """Somebody stops the node."""

    signal: SignalNumber


class Orphans(FromNode, tag="orphans", frozen=True):
    """How many processes the job left running here."""

    count: Annotated[int, Meta(ge=0, lt=1 << 22)]


class Started(FromNode, tag="started", frozen=True):
    """A process runs."""

    name: Name
    pid: Annotated[int, Meta(ge=0, lt=1 << 32)]


class Ended(FromNode, tag="ended", frozen=True):
    """A process has ended (negative: by that signal)."""

    name: Name
    status: Status


AnyFromNode = Union[Hello, Prepared, Failed, Said, Interrupted, Orphans, Started, Ended]


class ToNode(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="do"):
    """A message to a node."""


class NodeJob(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a node needs to plan its share."""

    command: list[str]
    launch: Optional[str]
    nodes: Number
    gpus_per_node: Number
    ranks_per_node: Number
    out: str


class Prepare(ToNode, tag="prepare", frozen=True):
    """Plan your share. `mark`: a file of this name in PHANTOM_STATE shows that the folder is the run's."""

    job: NodeJob
    variables: dict[str, str]
    rendezvous: tuple[Host, Port]
    mark: str


class Start(ToNode, tag="start", frozen=True):
    """Start what was planned."""


class Signal(ToNode, tag="signal", frozen=True):
    """Send a signal to all that run."""

    signal: SignalNumber


class End(ToNode, tag="end", frozen=True):
    """The run is over: end what the job left running."""


class Refuse(ToNode, tag="refuse", frozen=True):
    """The run does not take this node."""

    reason: str


AnyToNode = Union[Prepare, Start, Signal, End, Refuse]

FROM_NODE = msgspec.json.Decoder(AnyFromNode)
TO_NODE = msgspec.json.Decoder(AnyToNode)


def shown(text: str) -> str:
    """Text from another machine for a terminal: control characters are written out."""
    return "".join(
        letter if letter.isprintable() or letter == "\n" else repr(letter)[1:-1] for letter in text
    )
