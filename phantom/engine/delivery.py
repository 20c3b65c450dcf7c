"""Brings the values that collectives and messages carry to those who asked for them.

Without regard to virtual time: a result goes out as soon as all members have posted and every contribution
that was announced as "later" (its tensor waits for another value) has been supplied.
"""

from __future__ import annotations

from phantom.engine.collectives import TRAITS, Contribution
from phantom.engine.errors import protocol_error
from phantom.engine.operations import PendingOperation
from phantom.engine.session import RankSession
from phantom.wire import schema as wire
from phantom.wire.fields import Payload, ReduceOp, Value


class Delivery:
    """Contributions by side of an operation, and the results made from them."""

    def __init__(self, sessions: list[RankSession]) -> None:
        self._sessions = sessions

    def offer(
        self,
        session: RankSession,
        operation: PendingOperation,
        side: int,
        node_id: int,
        index: int,
        value: Value,
    ) -> None:
        """One side's contribution: a payload, None, or "later". `index` is its place in the launch."""
        if isinstance(value, Payload):
            operation.values[side] = value
        elif value is not None:
            session.supplies[node_id, index] = (operation, side)
            operation.outstanding += 1

    def supply(self, session: RankSession, node_id: int, index: int, value: Payload | None) -> None:
        """SUPPLY: a contribution that was announced. Raises JobError if it was not."""
        try:
            operation, side = session.supplies.pop((node_id, index))
        except KeyError:
            raise protocol_error(
                session.rank, f"supplies value {index} of node {node_id}, which does not wait for one"
            ) from None
        operation.outstanding -= 1
        self.offer(session, operation, side, node_id, index, value)
        self.deliver(operation)

    def drop(self, session: RankSession) -> None:
        """The rank is gone: what it announced will never be known."""
        for node_id, index in list(session.supplies):
            self.supply(session, node_id, index, None)

    def deliver(self, operation: PendingOperation) -> None:
        """Sends the results if everything is there."""
        if operation.outstanding or operation.operation is None:
            return
        if operation.kind == "p2p":
            self._deliver_message(operation)
        elif any(post.want for post in operation.posts.values()):
            self._deliver_collective(operation)
        operation.values.clear()

    def _deliver_collective(self, operation: PendingOperation) -> None:
        posts = [operation.posts[group_rank] for group_rank in operation.group_ranks]
        given = Contribution(
            payloads=[operation.values.get(group_rank) for group_rank in operation.group_ranks],
            root=posts[0].root,
            op=posts[0].reduction or ReduceOp.sum,
            factors=[post.factor for post in posts],
            in_splits=[post.in_splits for post in posts],
        )
        results = TRAITS[operation.kind].combine(given)
        for post, result in zip(posts, results, strict=True):
            if post.want:
                self._send(post.rank, post.node_id, 0, result)

    def _deliver_message(self, operation: PendingOperation) -> None:
        source, destination = operation.group_ranks
        received = operation.posts[-1 if source == destination else destination]
        if received.want:
            value = operation.values.get(source)
            self._send(received.rank, received.node_id, operation.receive_index, value)

    def _send(self, rank: int, node_id: int, index: int, value: Payload | None) -> None:
        self._sessions[rank].send(wire.ValueOf(node_id, index, value))
