"""Operations that the network carries: who takes part, when they are ready, when they end."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b

from netsim.operation import Operation
from phantom.engine.graph import Node
from phantom.wire.fields import Payload, ReduceOp

_SEQUENCE_BITS = 27


@dataclass(frozen=True, kw_only=True)
class Post:
    """One member's side of an operation. `group_rank` is its place in the communicator; sizes in bytes."""

    rank: int
    group_rank: int
    kind: str
    dtype: str
    size_bytes: int
    root: int
    where: str
    node_id: int = 0
    want: bool = False
    reduction: ReduceOp | None = None
    factor: float | None = None
    in_splits: tuple[int, ...] | None = None
    out_splits: tuple[int, ...] | None = None


class PendingOperation:
    """A collective, message or host copy from its first post to its completion.

    `ready` gates the start (every member has posted and every ready tail has ended), `done` is the
    completion.
    """

    __slots__ = (
        "comm",
        "done",
        "group_ranks",
        "kind",
        "members",
        "op_id",
        "operation",
        "outstanding",
        "posts",
        "ready",
        "receive_index",
        "seq",
        "start_ps",
        "values",
        "version",
    )

    def __init__(
        self, *, kind: str, comm: str, seq: int, op_id: int, members: int, group_ranks: tuple[int, ...]
    ) -> None:
        self.kind = kind
        self.comm = comm
        self.seq = seq
        self.op_id = op_id
        self.members = members  # sides that must post
        self.group_ranks = group_ranks  # their group ranks
        self.ready = Node(pending=members)
        self.done = Node(pending=1, external=True)
        self.ready.operation = self
        self.done.source = self
        self.posts: dict[int, Post] = {}
        self.values: dict[int, Payload] = {}
        self.operation: Operation | None = None  # set when all sides have posted
        self.outstanding = 0  # values that were announced but not supplied yet
        self.start_ps = 0
        self.receive_index = 0
        # Heap entries carry the version they were made with; another one means they are stale.
        self.version = 0

    def missing(self) -> list[int]:
        """Group ranks that have not posted."""
        return [group_rank for group_rank in self.group_ranks if group_rank not in self.posts]


class OperationIds:
    """Numbers for operations that do not depend on the order in which records arrive.

    The network orders ties by operation number, so a counter in order of arrival would leak real time into
    results. A number is a hash of the stream of operations (communicator, or pair within it) followed by the
    sequence number.
    """

    def __init__(self) -> None:
        self._streams: dict[int, tuple[object, ...]] = {}

    def stream(self, *name: object) -> int:
        """Returns the base of a stream of operations; add its sequence numbers to it."""
        digest = blake2b(repr(name).encode(), digest_size=8).digest()
        base = int.from_bytes(digest, "little") >> (64 - 62 + _SEQUENCE_BITS)
        while self._streams.setdefault(base, name) != name:
            base += 1  # a collision of 35-bit hashes can only reorder exact ties
        return base << _SEQUENCE_BITS
