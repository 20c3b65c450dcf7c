"""Explains a deadlock: for each rank what it waits for, and which peers have not come."""

from __future__ import annotations

from collections.abc import Mapping

from phantom.engine.clocks import Clock, ClockState
from phantom.engine.graph import Node
from phantom.engine.matching import Communicator
from phantom.engine.operations import PendingOperation
from phantom.engine.session import RankSession, SessionState
from phantom.engine.store import Addition, Store, Wait

# A report is read by a person: beyond this many ranks equal lines are what one looks for, not all of them.
_MOST_RANKS = 64
_MOST_NAMES = 16


def _ranks(ranks: list[int]) -> str:
    shown = ", ".join(str(rank) for rank in ranks[:_MOST_NAMES])
    more = f" and {len(ranks) - _MOST_NAMES} more" if len(ranks) > _MOST_NAMES else ""
    return f"rank{'s' if len(ranks) != 1 else ''} {shown}{more}"


def blocking_operations(node: Node) -> list[PendingOperation]:
    """Operations that `node` waits for and that cannot end by themselves: some member has not posted.

    If there is none, those that wait for each other in a cycle.
    """
    seen: set[int] = set()
    stack = [node]
    incomplete: list[PendingOperation] = []
    others: list[PendingOperation] = []
    while stack:
        current = stack.pop()
        if id(current) in seen or current.end_ps is not None:
            continue
        seen.add(id(current))
        operation = current.source
        if operation is not None:
            if operation.missing() or len(operation.posts) < operation.members:
                incomplete.append(operation)
            else:
                others.append(operation)
            stack.append(operation.ready)
        stack.extend(dep for dep, _ in current.deps)
    return sorted(incomplete or others, key=lambda operation: (operation.comm, operation.op_id))


def short_name(operation: PendingOperation, communicators: Mapping[str, Communicator]) -> str:
    """Kind, sequence number and group."""
    comm = communicators.get(operation.comm)
    return f"{operation.kind} #{operation.seq}" + (f" of group {comm.label!r}" if comm is not None else "")


def describe_operation(operation: PendingOperation, communicators: Mapping[str, Communicator]) -> str:
    """One operation with group, sequence number, size, place in the script and missing peers."""
    comm = communicators.get(operation.comm)
    post = operation.posts[min(operation.posts)]
    where = f", called at {post.where}" if post.where else ""
    if comm is None:
        return f"a host copy of {post.size_bytes} bytes"
    size = f"{post.size_bytes} bytes of {post.dtype}"
    if operation.kind == "p2p":
        source, destination = operation.group_ranks
        what = f"message #{operation.seq} from rank {comm.ranks[source]} to rank {comm.ranks[destination]}"
        text = f"{what} in group {comm.label!r} ({size}{where})"
    else:
        what = f"{operation.kind} #{operation.seq} of group {comm.label!r}"
        text = f"{what} ({len(comm.ranks)} ranks, {size}{where})"
    missing = [comm.ranks[index] for index in operation.missing()]
    if missing:
        verb = "have" if len(missing) > 1 else "has"
        return f"{text}; waits for {_ranks(missing)}, which {verb} not called it"
    return f"{text}; all have called it, but it comes after another operation that cannot end"


def _waiting(clock: Clock, communicators: Mapping[str, Communicator], store: Store) -> str:
    target = clock.waits_for
    thread = "" if clock.clock_id == 0 else f" (thread clock {clock.clock_id})"
    reason = f"blocked in {clock.reason}{thread}" if clock.reason else f"blocked{thread}"
    if isinstance(target, Node):
        operations = blocking_operations(target)
        if operations:
            return f"{reason}: " + "; and ".join(
                describe_operation(operation, communicators) for operation in operations[:4]
            )
    if isinstance(target, Wait):
        keys = ", ".join(repr(key) for key in store.missing_keys(target)[:_MOST_NAMES])
        return f"{reason}: waits for store keys that nobody has set: {keys}"
    if isinstance(target, Addition):
        return f"{reason}: waits for earlier additions to a store counter"
    return reason


def _rank_line(
    session: RankSession, communicators: Mapping[str, Communicator], store: Store, unfinished: list[str]
) -> str:
    if session.state is not SessionState.LIVE:
        last = ""
        if session.last_operation is not None:
            last = f", its last operation was {short_name(session.last_operation, communicators)}"
        left = f"; left behind: {'; '.join(unfinished[:4])}" if unfinished else ""
        return f"rank {session.rank}: {session.state.value}{last}{left}"
    blocked = [
        _waiting(clock, communicators, store)
        for _, clock in sorted(session.clocks.items())
        if clock.state is ClockState.BLOCKED
    ]
    silent = [clock for clock in session.clocks.values() if clock.state is ClockState.SILENT]
    if not blocked:
        blocked = ["silent" if silent else "waits for nothing"]
    return f"rank {session.rank}: " + "; ".join(blocked)


def report(
    sessions: list[RankSession], communicators: Mapping[str, Communicator], store: Store, now_ps: int
) -> str:
    """The whole report, one line per rank."""
    unfinished: dict[int, list[str]] = {}
    for key in sorted(communicators):
        comm = communicators[key]
        pending = [*comm.collectives.values(), *comm.messages.values()]
        for operation in sorted(pending, key=lambda entry: entry.op_id):
            for post in operation.posts.values():
                unfinished.setdefault(post.rank, []).append(describe_operation(operation, communicators))
    lines = [f"deadlock at virtual time {now_ps / 1e12:.6f} s: no rank can go on"]
    lines += [
        _rank_line(session, communicators, store, unfinished.get(session.rank, []))
        for session in sessions[:_MOST_RANKS]
    ]
    if len(sessions) > _MOST_RANKS:
        lines.append(f"... and {len(sessions) - _MOST_RANKS} more ranks")
    return "\n  ".join(lines)
