"""Every record between a rank and the simulator: its number and its fields, each with type, unit and range.

The one place where the protocol is written down. `records.py` makes the decoders from these classes; the C++
side and the table in docs/wire.md are generated from them (`python -m phantom.wire.generate`). A record
travels as a msgpack array: its number, then its fields in order. Nested structures (`fields.py`) are
arrays too, except those that say they are maps.

A **tail** is a point in virtual time that may not be known yet, `max(end(node) + offset_ps, bound_ps)`; node
0 means none. Node numbers are per rank and increase from 1. `clock` numbers a thread of the rank (0 is the
main one); `now_ps` is that thread's time and a lower bound of all it will still emit.
"""

from __future__ import annotations

from typing import Annotated, Optional, Union

from msgspec import Meta, Struct

from phantom.wire.fields import (
    AbortKind,
    Account,
    Backend,
    Bytes,
    ClockNumber,
    CollectiveKind,
    Count,
    Dependency,
    Direction,
    Flag,
    Name,
    Number,
    OutOfMemory,
    Payload,
    Ps,
    Rank,
    Ranks,
    Real,
    ReduceOp,
    Sequence,
    Side,
    Signed,
    Splits,
    StepNumber,
    Tail,
    Text,
    Value,
)
from phantom.wire.limits import MAX_RANKS

# ruff: noqa: UP007, UP045


class Record(Struct, frozen=True, array_like=True, forbid_unknown_fields=True, gc=False):
    """A record; travels as an array that begins with its number."""


# Rank to simulator


class Hello(Record, tag=1, frozen=True):
    """The first record of a session; `protocol` stands first in every version."""

    protocol: Number
    rank: Rank
    world_size: Ranks
    local_rank: Annotated[int, Meta(ge=-1, lt=MAX_RANKS, description="rank, -1: unknown")] = -1
    node: Rank = 0
    pid: Number = 0


class Clock(Record, tag=2, frozen=True):
    """The clock has reached `now_ps`; makes it if it is new."""

    clock: ClockNumber
    now_ps: Ps


class ClockEnd(Record, tag=3, frozen=True):
    """The thread of this clock is gone."""

    clock: ClockNumber


class Node(Record, tag=4, frozen=True):
    """A new node that ends at `max(bound_ps, end(dependency) + offset_ps, ...)`."""

    node: Number
    dependencies: Annotated[list[Dependency], Meta(max_length=1024)]
    bound_ps: Ps


class Collective(Record, tag=5, frozen=True):
    """One member's side of a collective.

    `size_bytes` is NCCL's message size (all_reduce, broadcast, reduce: the buffer; all_gather and
    reduce_scatter: the larger buffer; all_to_all: the rank's send buffer; gather and scatter: the piece times
    the ranks). `want`: a VALUE_OF is asked for. `factor` scales the input of premul_sum. Splits count
    elements.
    """

    node: Number
    comm: Name
    seq: Sequence
    kind: CollectiveKind
    dtype: Name
    size_bytes: Bytes
    root: Annotated[int, Meta(ge=-1, lt=MAX_RANKS, description="group rank, -1: none")]
    ready: Tail
    clock: ClockNumber
    now_ps: Ps
    value: Value = None
    where: Text = ""
    want: Flag = False
    op: Optional[ReduceOp] = None
    factor: Optional[Real] = None
    in_splits: Splits = None
    out_splits: Splits = None


class Comm(Record, tag=6, frozen=True):
    """A communicator, by every member before its first use; `ranks` are global ones in group order."""

    comm: Name
    ranks: Annotated[list[Rank], Meta(min_length=1, max_length=MAX_RANKS)]
    backend: Backend
    label: Text


class P2P(Record, tag=7, frozen=True):
    """A launch of messages; the node ends with the last of them."""

    node: Number
    comm: Name
    ready: Tail
    clock: ClockNumber
    now_ps: Ps
    sides: Annotated[list[Side], Meta(min_length=1, max_length=MAX_RANKS)]
    where: Text


class Sync(Record, tag=8, frozen=True):
    """The thread is blocked until the tail has ended; ANSWER is the time at which it goes on."""

    request: Number
    clock: ClockNumber
    tail: Tail
    now_ps: Ps
    why: Text


class Query(Record, tag=9, frozen=True):
    """Has the tail ended at `now_ps`? ANSWER is 1 or 0."""

    request: Number
    clock: ClockNumber
    tail: Tail
    now_ps: Ps


class Post(Record, tag=10, frozen=True):
    """A store key is set."""

    key: Text
    clock: ClockNumber
    now_ps: Ps


class Wait(Record, tag=11, frozen=True):
    """The thread waits for store keys; ANSWER is the later of `now_ps` and the first POST of each."""

    request: Number
    clock: ClockNumber
    keys: Annotated[list[Text], Meta(max_length=MAX_RANKS)]
    now_ps: Ps
    why: Text


class Forget(Record, tag=12, frozen=True):
    """A store key is deleted."""

    key: Text


class Add(Record, tag=13, frozen=True):
    """A store counter got `amount` and is `result`; ANSWER is the latest clock of all adders up to it."""

    request: Number
    clock: ClockNumber
    key: Text
    amount: Signed
    result: Signed
    now_ps: Ps


class Step(Record, tag=14, frozen=True):
    """End of optimizer step `index`; a rank's steps follow each other without a gap."""

    index: StepNumber
    tail: Tail
    clock: ClockNumber
    now_ps: Ps


class Stats(Record, tag=15, frozen=True):
    """The rank's own account so far; a later one replaces it."""

    account: Account


class Fault(Record, tag=16, frozen=True):
    """Something that the report should know."""

    fault: OutOfMemory


class Bye(Record, tag=17, frozen=True):
    """The rank has finished; its last record."""


class Transfer(Record, tag=18, frozen=True):
    """A copy between host and device, which shares PCIe with others."""

    node: Number
    direction: Direction
    size_bytes: Bytes
    pinned: Flag
    ready: Tail
    clock: ClockNumber
    now_ps: Ps


class Supply(Record, tag=19, frozen=True):
    """The value of a COLLECTIVE or of a message (by its place in the launch) whose record said "later"."""

    node: Number
    index: Rank
    value: Optional[Payload]


class Waited(Record, tag=20, frozen=True):
    """The real wait behind a WAIT is over, so a key that nobody posted came from outside the job."""

    request: Number


RankRecord = Union[
    Hello, Clock, ClockEnd, Node, Collective, Comm, P2P, Sync, Query, Post, Wait, Forget, Add, Step, Stats,
    Fault, Bye, Transfer, Supply, Waited,
]  # fmt: skip


# Simulator to rank


class Welcome(Record, tag=1, frozen=True):
    """The session is open."""

    protocol: Number
    world_size: Ranks


class Answer(Record, tag=2, frozen=True):
    """Of SYNC, QUERY, WAIT, ADD: a time, or 0 and 1."""

    request: Number
    value: Ps


class Resolved(Record, tag=3, frozen=True):
    """Nodes whose end is known, each followed by its end."""

    ends: list[Count]


class ValueOf(Record, tag=4, frozen=True):
    """The result of a collective or message that asked for it; nil: nobody knows it."""

    node: Number
    index: Rank
    value: Optional[Payload]


class Abort(Record, tag=5, frozen=True):
    """The simulator has ended the job."""

    kind: AbortKind
    message: Text


EngineRecord = Union[Welcome, Answer, Resolved, ValueOf, Abort]
