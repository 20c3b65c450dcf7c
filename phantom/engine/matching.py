"""Matches the sides of collectives and messages, with NCCL's rules of order per communicator."""

from __future__ import annotations

from typing import Any

from netsim.operation import Operation, even_size_bytes
from phantom.engine import values
from phantom.engine.collectives import TRAITS
from phantom.engine.delivery import Delivery
from phantom.engine.errors import JobError, protocol_error
from phantom.engine.graph import Node
from phantom.engine.operations import OperationIds, PendingOperation, Post
from phantom.engine.session import RankSession
from phantom.wire.fields import AbortKind, Backend, Direction, Side, Value

# A tail that has been looked up: node or None, offset, bound.
LookedUpTail = tuple["Node | None", int, int]


class Communicator:
    """An ordered group of ranks; collectives in it are matched by sequence number."""

    __slots__ = (
        "backend",
        "collectives",
        "group_rank",
        "key",
        "label",
        "messages",
        "pairs",
        "ranks",
        "stream",
    )

    def __init__(self, key: str, ranks: tuple[int, ...], backend: str, label: str, stream: int) -> None:
        self.key = key
        self.label = label or key
        self.ranks = ranks
        self.backend = backend
        self.group_rank = {rank: index for index, rank in enumerate(ranks)}
        self.stream = stream
        self.collectives: dict[int, PendingOperation] = {}
        self.messages: dict[tuple[int, int, int], PendingOperation] = {}
        self.pairs: dict[tuple[int, int], int] = {}


class Matcher:
    """Communicators and the operations in them that some member has not posted yet."""

    def __init__(self, sessions: list[RankSession]) -> None:
        self._sessions = sessions
        self.delivery = Delivery(sessions)
        self._ids = OperationIds()
        self.communicators: dict[str, Communicator] = {}

    def declare(self, session: RankSession, key: str, ranks: list[int], backend: Backend, label: str) -> None:
        """COMM. Raises JobError if members disagree about who belongs to it."""
        members = tuple(ranks)
        if session.rank not in members or len(set(members)) != len(members):
            raise protocol_error(session.rank, f"communicator {key!r} has impossible members {members}")
        if not all(0 <= rank < len(self._sessions) for rank in members):
            raise protocol_error(
                session.rank, f"communicator {key!r} names ranks that do not exist: {members}"
            )
        known = self.communicators.get(key)
        if known is None:
            stream = self._ids.stream("comm", key)
            self.communicators[key] = Communicator(key, members, backend, label, stream)
        elif known.ranks != members or known.backend != backend:
            raise JobError(
                AbortKind.mismatch,
                f"group {known.label!r} differs between ranks: rank {session.rank} says {backend} "
                f"{list(members)}, another member says {known.backend} {list(known.ranks)}",
            )

    def communicator(self, session: RankSession, key: str) -> Communicator:
        """Looks up a communicator this rank belongs to. Raises JobError otherwise."""
        comm = self.communicators.get(key)
        if comm is None or session.rank not in comm.group_rank:
            raise protocol_error(session.rank, f"communicator {key!r} was not declared by this rank")
        return comm

    def collective(
        self,
        session: RankSession,
        comm: Communicator,
        seq: int,
        post: Post,
        tail: LookedUpTail,
        value: Value,
    ) -> PendingOperation:
        """COLLECTIVE: one member's side. Returns the operation; its `done` is the rank's node.

        Raises JobError if the members' sides do not fit together.
        """
        operation = comm.collectives.get(seq)
        traits = TRAITS[post.kind]
        if not (0 if traits.rooted else -1) <= post.root < len(comm.ranks):
            raise protocol_error(
                session.rank, f"{post.kind} #{seq} of group {comm.label!r} has root {post.root}"
            )
        if operation is None:
            operation = PendingOperation(
                kind=post.kind,
                comm=comm.key,
                seq=seq,
                op_id=comm.stream + seq,
                members=len(comm.ranks),
                group_ranks=tuple(range(len(comm.ranks))),
            )
            comm.collectives[seq] = operation
        elif post.group_rank in operation.posts:
            raise protocol_error(session.rank, f"posts {post.kind} #{seq} of group {comm.label!r} twice")
        operation.posts[post.group_rank] = post
        _check_agreement(comm, operation, post, traits.agree)
        self.delivery.offer(session, operation, post.group_rank, post.node_id, 0, value)
        _hold(operation.ready, tail)
        if len(operation.posts) == len(comm.ranks):
            del comm.collectives[seq]
            self._complete(comm, operation)
        return operation

    def _complete(self, comm: Communicator, operation: PendingOperation) -> None:
        posts = [operation.posts[index] for index in range(len(comm.ranks))]
        first = posts[0]
        traits = TRAITS[first.kind]
        counts = None
        if traits.splits and any(post.in_splits or post.out_splits for post in posts):
            counts = _send_counts(comm, operation, posts)
        size_bytes = first.size_bytes if counts is None else even_size_bytes(counts)
        operation.operation = Operation(
            kind=first.kind,
            ranks=comm.ranks,
            size_bytes=size_bytes if traits.sized else 0,
            dtype=first.dtype,
            root=first.root,
            send_counts=counts,
            backend=comm.backend,
        )
        self.delivery.deliver(operation)

    def message(
        self,
        session: RankSession,
        comm: Communicator,
        given: Side,
        post: Post,
        tail: LookedUpTail,
        index: int,
    ) -> PendingOperation:
        """One side of a message. Returns the operation; it starts when both sides are ready (rendezvous).

        `index` is the place in the launch, under which a receiver gets its VALUE.
        Raises JobError if sender and receiver disagree.
        """
        me, peer, is_send, seq = post.group_rank, given.peer, given.is_send, given.seq
        if peer >= len(comm.ranks):
            raise protocol_error(session.rank, f"peer {peer} is outside group {comm.label!r}")
        source, destination = (me, peer) if is_send else (peer, me)
        key = (source, destination, seq)
        operation = comm.messages.get(key)
        if operation is None:
            stream = comm.pairs.get((source, destination))
            if stream is None:
                stream = self._ids.stream("pair", comm.key, source, destination)
                comm.pairs[source, destination] = stream
            # A message to oneself has two sides of the same rank, so sides are counted as 0 and 1.
            operation = PendingOperation(
                kind="p2p",
                comm=comm.key,
                seq=seq,
                op_id=stream + seq,
                members=2,
                group_ranks=(source, destination),
            )
            comm.messages[key] = operation
        side = source if is_send else destination
        if source == destination and not is_send:
            side = -1
        if side in operation.posts:
            raise protocol_error(session.rank, f"posts message #{seq} {source} -> {destination} twice")
        operation.posts[side] = post
        if is_send:
            self.delivery.offer(session, operation, side, post.node_id, index, given.value)
        else:
            operation.receive_index = index
        _hold(operation.ready, tail)
        if len(operation.posts) == 2:
            del comm.messages[key]
            self._complete_message(comm, operation, source, destination)
        return operation

    def _complete_message(
        self, comm: Communicator, operation: PendingOperation, source: int, destination: int
    ) -> None:
        sent = operation.posts[source]
        received = operation.posts[-1 if source == destination else destination]
        if sent.size_bytes != received.size_bytes or sent.dtype != received.dtype:
            raise JobError(
                AbortKind.mismatch,
                f"message #{operation.seq} of group {comm.label!r} differs between its two sides:\n"
                f"  rank {sent.rank} sends {sent.size_bytes} bytes of {sent.dtype}{_at(sent)}\n  rank "
                f"{received.rank} receives {received.size_bytes} bytes of {received.dtype}{_at(received)}",
            )
        operation.operation = Operation(
            kind="p2p",
            ranks=(comm.ranks[source], comm.ranks[destination]),
            size_bytes=sent.size_bytes,
            dtype=sent.dtype,
            source=comm.ranks[source],
            destination=comm.ranks[destination],
            backend=comm.backend,
        )
        self.delivery.deliver(operation)

    def transfer(
        self,
        session: RankSession,
        direction: Direction,
        pinned: bool,
        post: Post,
        tail: LookedUpTail,
    ) -> PendingOperation:
        """TRANSFER: a host copy of one rank, carried by the network because it shares PCIe."""
        if session.transfers == 0:
            session.transfer_stream = self._ids.stream("transfer", session.rank)
        session.transfers += 1
        operation = PendingOperation(
            kind="transfer",
            comm="",
            seq=session.transfers,
            op_id=session.transfer_stream + session.transfers,
            members=1,
            group_ranks=(0,),
        )
        operation.posts[0] = post
        operation.operation = Operation(
            kind="transfer",
            ranks=(session.rank,),
            size_bytes=post.size_bytes,
            source=session.rank,
            direction=direction.value,
            pinned=pinned,
        )
        _hold(operation.ready, tail)
        return operation


def _hold(ready: Node, tail: LookedUpTail) -> None:
    node, offset_ps, bound_ps = tail
    if bound_ps > ready.floor_ps:
        ready.floor_ps = bound_ps
    if node is not None:
        ready.require(node, offset_ps)
    ready.pending -= 1


def _at(post: Post) -> str:
    return f" at {post.where}" if post.where else ""


def _signature(post: Post, fields: tuple[str, ...]) -> tuple[Any, ...]:
    return tuple(getattr(post, name) for name in fields)


def _describe(post: Post) -> str:
    root = f", root {post.root}" if post.root >= 0 else ""
    reduction = f", {post.reduction.value}" if post.reduction else ""
    return f"{post.kind} of {post.size_bytes} bytes of {post.dtype}{root}{reduction}{_at(post)}"


def _check_agreement(
    comm: Communicator, operation: PendingOperation, post: Post, fields: tuple[str, ...]
) -> None:
    """Compares a side with any earlier one. Raises JobError that shows each different side once."""
    other = next(iter(operation.posts.values()))
    if other is post or (other.kind == post.kind and _signature(other, fields) == _signature(post, fields)):
        return
    sides: dict[tuple[Any, ...], list[Post]] = {}
    for group_rank in sorted(operation.posts):
        side = operation.posts[group_rank]
        sides.setdefault((side.kind, *_signature(side, fields)), []).append(side)
    lines = []
    for posts in sides.values():
        names = ", ".join(str(side.rank) for side in posts)
        lines.append(f"  rank{'s' if len(posts) > 1 else ''} {names}: {_describe(posts[0])}")
    raise JobError(
        AbortKind.mismatch,
        f"collective #{operation.seq} of group {comm.label!r} differs between ranks:\n" + "\n".join(lines),
    )


def _send_counts(
    comm: Communicator, operation: PendingOperation, posts: list[Post]
) -> tuple[tuple[int, ...], ...]:
    """Bytes that group rank i sends to j. Raises JobError if a receiver expects something else."""
    ranks = len(posts)
    width = values.element_bytes(posts[0].dtype) or 1
    rows: list[list[int]] = []
    for post in posts:
        if post.in_splits:
            rows.append([count * width for count in post.in_splits])
        else:
            rows.append([post.size_bytes // ranks] * ranks)
        if len(rows[-1]) != ranks:
            raise protocol_error(post.rank, f"all_to_all with {len(rows[-1])} splits in a group of {ranks}")
    for receiver in posts:
        expected = receiver.out_splits
        for sender in posts if expected else ():
            sent = rows[sender.group_rank][receiver.group_rank]
            wanted = expected[sender.group_rank] * width if expected else 0
            if sent != wanted:
                raise JobError(
                    AbortKind.mismatch,
                    f"all_to_all #{operation.seq} of group {comm.label!r}: rank {sender.rank} sends {sent} "
                    f"bytes to rank {receiver.rank}{_at(sender)}, which expects {wanted}{_at(receiver)}",
                )
    return tuple(tuple(row) for row in rows)
