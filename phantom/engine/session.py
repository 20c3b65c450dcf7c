"""What the engine keeps of one rank: its clocks, its unresolved nodes, and what is to be sent to it."""

from __future__ import annotations

from collections import deque
from enum import Enum

from phantom.engine.clocks import Clock
from phantom.engine.errors import beyond_time, protocol_error
from phantom.engine.graph import Node
from phantom.engine.operations import PendingOperation
from phantom.wire import schema as wire
from phantom.wire.limits import MAX_PS
from phantom.wire.records import encode, join

# RESOLVED alone is worth a message of its own only from this many nodes on, or when the engine is idle.
_RESOLVED_BATCH = 256
# Well below the 64 MiB message limit; a single VALUE is at most 16 MiB.
_BATCH_BYTES = 24 * 1024 * 1024


class SessionState(Enum):
    """Life of a rank as the engine sees it."""

    EXPECTED = "not attached yet"
    LIVE = "running"
    FINISHED = "finished"
    LOST = "lost"


class RankSession:
    """One rank. Sending is numbered by batches so that resolved nodes can be dropped once acknowledged."""

    def __init__(self, rank: int, outgoing: set[int]) -> None:
        self.rank = rank
        self._outgoing = outgoing  # ranks that have something worth sending
        self.state = SessionState.EXPECTED
        self.steps = 0  # steps that have been announced
        self.clocks: dict[int, Clock] = {}
        self.nodes: dict[int, Node] = {}
        self.heard_s = 0.0
        self.last_operation: PendingOperation | None = None
        self.transfers = 0
        # Values announced as "later", by node and place in the launch: operation and side.
        self.supplies: dict[tuple[int, int], tuple[PendingOperation, int]] = {}
        self.transfer_stream = 0
        self._out: list[bytes] = []
        self._resolved: list[int] = []
        self._batches_sent = 0
        self._unacknowledged: deque[tuple[int, list[int]]] = deque()

    def node(self, node_id: int) -> Node:
        """Looks up a node. Raises JobError if it was never made or is forgotten."""
        try:
            return self.nodes[node_id]
        except KeyError:
            raise protocol_error(
                self.rank, f"refers to node {node_id}, which is unknown or forgotten"
            ) from None

    def add(self, node_id: int, node: Node) -> None:
        """Puts a node into the table under the rank's own number. Raises JobError if the number is taken."""
        if node_id in self.nodes or node_id <= 0:
            raise protocol_error(self.rank, f"defines node {node_id} twice or with an invalid number")
        self.nodes[node_id] = node
        if node.end_ps is not None and node.event is None:
            self.resolved(node_id, node.end_ps)
        else:
            node.owners.append((self, node_id))

    def resolved(self, node_id: int, end_ps: int) -> None:
        """Queues RESOLVED. Raises JobError for a time beyond the end of virtual time."""
        if end_ps > MAX_PS:
            raise beyond_time(self.rank, end_ps)
        self._resolved.append(node_id)
        self._resolved.append(end_ps)
        if len(self._resolved) >= 2 * _RESOLVED_BATCH:
            self._outgoing.add(self.rank)

    def answer(self, request: int, value: int) -> None:
        """Queues ANSWER. Raises JobError for a time beyond the end of virtual time."""
        if value > MAX_PS:
            raise beyond_time(self.rank, value)
        self.send(wire.Answer(request, value))

    def send(self, record: wire.Record) -> None:
        """Queues any record."""
        self._outgoing.add(self.rank)
        self._out.append(encode(record))

    def acknowledge(self, batches: int) -> None:
        """The rank has received that many batches: their resolved nodes can go."""
        waiting = self._unacknowledged
        while waiting and waiting[0][0] <= batches:
            for node_id in waiting.popleft()[1]:
                del self.nodes[node_id]

    def take(self) -> list[bytes]:
        """Returns the batches to send, RESOLVED ahead of the answers that may rely on it."""
        if not self._out and not self._resolved:
            return []
        self._batches_sent += 1
        batch: list[bytes] = []
        if self._resolved:
            batch.append(encode(wire.Resolved(self._resolved)))
            self._unacknowledged.append((self._batches_sent, self._resolved[::2]))
            self._resolved = []
        batches: list[bytes] = []
        size = 0
        for record in self._out:
            if size + len(record) > _BATCH_BYTES and batch:
                batches.append(join(batch))
                self._batches_sent += 1
                batch, size = [], 0
            batch.append(record)
            size += len(record)
        self._out.clear()
        batches.append(join(batch))
        return batches
