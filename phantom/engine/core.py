"""The engine's state and what each record does to it."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any

from phantom.engine.clocks import INFINITY_PS, Clock, ClockState, Horizon
from phantom.engine.errors import protocol_error
from phantom.engine.graph import Node
from phantom.engine.matching import LookedUpTail, Matcher
from phantom.engine.operations import Post
from phantom.engine.options import EngineOptions
from phantom.engine.scheduler import Network, Scheduler
from phantom.engine.session import RankSession, SessionState
from phantom.engine.statistics import Statistics
from phantom.engine.store import Addition, Answer, Store, Wait
from phantom.engine.waiters import StepWaiter, SyncWaiter
from phantom.wire import schema as wire
from phantom.wire.fields import Tail
from phantom.wire.limits import PROTOCOL
from phantom.wire.records import record_name

_LATE = "records came from clocks that had been taken out of the horizon; their times were moved up"


class Core:
    """Everything between a decoded record and the events of virtual time. Knows no bytes and no real time."""

    def __init__(
        self,
        network: Network,
        *,
        world_size: int,
        options: EngineOptions,
    ) -> None:
        self.options = options
        self.horizon = Horizon()
        self.outgoing: set[int] = set()
        self.sessions = [RankSession(rank, self.outgoing) for rank in range(world_size)]
        self.statistics = Statistics(world_size)
        self.store = Store()
        self.scheduler = Scheduler(
            network, on_final=self._on_final, speculation_events=options.speculation_events
        )
        self.matcher = Matcher(self.sessions)
        self.real_s = 0.0
        self._graph = self.scheduler.graph
        self.world_size: int | None = None
        self._queries: list[tuple[int, int, int, int, Clock, Node, int]] = []
        self._pushes = 0
        self._handlers: dict[type[wire.Record], Callable[[RankSession, Any], None]] = {
            wire.Hello: self._hello,
            wire.Clock: self._clock,
            wire.ClockEnd: self._clock_end,
            wire.Node: self._node,
            wire.Collective: self._collective,
            wire.Comm: self._comm,
            wire.P2P: self._p2p,
            wire.Sync: self._sync,
            wire.Query: self._query,
            wire.Post: self._post,
            wire.Wait: self._wait,
            wire.Forget: self._forget,
            wire.Add: self._add,
            wire.Step: self._step,
            wire.Stats: self._stats,
            wire.Fault: self._fault,
            wire.Bye: self._bye,
            wire.Transfer: self._transfer,
            wire.Supply: self._supply,
            wire.Waited: self._waited,
        }
        for session in self.sessions:
            # A rank that has not attached may still emit from time 0 on, so it holds the horizon there.
            self._new_clock(session, 0, 0)

    def handle(self, session: RankSession, record: wire.Record) -> None:
        """Applies one record. Raises JobError if it ends the job."""
        kind = type(record)
        if session.state is not SessionState.LIVE and kind is not wire.Hello:
            raise protocol_error(
                session.rank, f"sends {record_name(record)} while it is {session.state.value}"
            )
        self._handlers[kind](session, record)

    # Clocks

    def _new_clock(self, session: RankSession, clock_id: int, now_ps: int) -> Clock:
        clock = Clock(session.rank, clock_id, now_ps)
        clock.heard_s = self.real_s
        session.clocks[clock_id] = clock
        self.horizon.run(clock)
        return clock

    def _touch(self, session: RankSession, clock_id: int, now_ps: int, *, bound_only: bool = False) -> Clock:
        clock = session.clocks.get(clock_id)
        if now_ps < self.scheduler.committed_ps and not bound_only:
            self.statistics.warn(_LATE)
        if clock is None:
            return self._new_clock(session, clock_id, now_ps)
        clock.heard_s = self.real_s
        if now_ps > clock.now_ps:
            clock.now_ps = now_ps
            if clock.state is ClockState.BLOCKED:
                # It went on without its answer: a store wait that timed out and was given up.
                self.horizon.run(clock)
        if clock.state is ClockState.SILENT:
            self.horizon.run(clock)
        return clock

    def _clock(self, session: RankSession, record: wire.Clock) -> None:
        # Nothing happens at the time of a bare bound (a thread that is joined long after it began, and issues
        # nothing, tells one), so a late one moves no result.
        self._touch(session, record.clock, record.now_ps, bound_only=True)

    def _clock_end(self, session: RankSession, record: wire.ClockEnd) -> None:
        clock = session.clocks.pop(record.clock, None)
        if clock is not None:
            clock.state = ClockState.ENDED

    def _hello(self, session: RankSession, hello: wire.Hello) -> None:
        if hello.protocol != PROTOCOL:
            raise protocol_error(
                session.rank, f"speaks protocol {hello.protocol}, this simulator speaks {PROTOCOL}"
            )
        if hello.rank != session.rank:
            raise protocol_error(session.rank, f"says that it is rank {hello.rank}")
        if session.state is not SessionState.EXPECTED:
            raise protocol_error(session.rank, f"attaches a second time (it is {session.state.value})")
        world_size = hello.world_size
        if world_size > len(self.sessions):
            raise protocol_error(
                session.rank,
                f"world size {world_size} is more than the {len(self.sessions)} GPUs of this job",
            )
        if self.world_size not in (None, world_size):
            raise protocol_error(
                session.rank, f"has world size {world_size}, another rank has {self.world_size}"
            )
        if self.world_size is None:
            self.world_size = world_size
            for other in self.sessions[world_size:]:
                self.finish(other)
        session.state = SessionState.LIVE
        session.clocks[0].heard_s = self.real_s
        session.send(wire.Welcome(PROTOCOL, world_size))

    def finish(self, session: RankSession) -> None:
        """The rank emits nothing any more."""
        session.state = SessionState.FINISHED
        for clock in session.clocks.values():
            clock.state = ClockState.ENDED
        session.clocks.clear()
        self.matcher.delivery.drop(session)

    def _bye(self, session: RankSession, record: wire.Bye) -> None:
        self.finish(session)

    # Device work

    def _tail(self, session: RankSession, tail: Tail, now_ps: int) -> LookedUpTail:
        node = session.node(tail.node) if tail.node else None
        return node, tail.offset_ps, max(tail.bound_ps, now_ps)

    def _node(self, session: RankSession, record: wire.Node) -> None:
        node = Node(floor_ps=record.bound_ps)
        for dependency in record.dependencies:
            node.require(session.node(dependency.node), dependency.offset_ps)
        session.add(record.node, node)
        self._graph.try_resolve(node)

    def _comm(self, session: RankSession, record: wire.Comm) -> None:
        self.matcher.declare(session, record.comm, record.ranks, record.backend, record.label)

    def _collective(self, session: RankSession, record: wire.Collective) -> None:
        now_ps = record.now_ps
        self._touch(session, record.clock, now_ps)
        comm = self.matcher.communicator(session, record.comm)
        post = Post(
            rank=session.rank,
            group_rank=comm.group_rank[session.rank],
            kind=str(record.kind),
            dtype=record.dtype,
            size_bytes=record.size_bytes,
            root=record.root,
            where=record.where,
            node_id=record.node,
            want=record.want,
            reduction=record.op,
            factor=record.factor,
            in_splits=record.in_splits,
            out_splits=record.out_splits,
        )
        looked_up = self._tail(session, record.ready, now_ps)
        operation = self.matcher.collective(session, comm, record.seq, post, looked_up, record.value)
        session.last_operation = operation
        session.add(record.node, operation.done)
        self._graph.try_resolve(operation.ready)

    def _p2p(self, session: RankSession, record: wire.P2P) -> None:
        now_ps = record.now_ps
        self._touch(session, record.clock, now_ps)
        comm = self.matcher.communicator(session, record.comm)
        looked_up = self._tail(session, record.ready, now_ps)
        operations = []
        for index, side in enumerate(record.sides):
            post = Post(
                rank=session.rank,
                group_rank=comm.group_rank[session.rank],
                kind="p2p",
                dtype=side.dtype,
                size_bytes=side.size_bytes,
                root=-1,
                where=record.where,
                node_id=record.node,
                want=side.want,
            )
            operations.append(self.matcher.message(session, comm, side, post, looked_up, index))
        if len(operations) == 1:
            session.add(record.node, operations[0].done)
        else:
            node = Node(floor_ps=looked_up[2])
            for operation in operations:
                node.require(operation.done, 0)
            session.add(record.node, node)
            self._graph.try_resolve(node)
        for operation in operations:
            session.last_operation = operation
            self._graph.try_resolve(operation.ready)

    def _transfer(self, session: RankSession, record: wire.Transfer) -> None:
        self._touch(session, record.clock, record.now_ps)
        post = Post(
            rank=session.rank,
            group_rank=0,
            kind="transfer",
            dtype="uint8",
            size_bytes=record.size_bytes,
            root=-1,
            where="",
            node_id=record.node,
        )
        looked_up = self._tail(session, record.ready, record.now_ps)
        operation = self.matcher.transfer(session, record.direction, record.pinned, post, looked_up)
        session.add(record.node, operation.done)
        self._graph.try_resolve(operation.ready)

    def _supply(self, session: RankSession, record: wire.Supply) -> None:
        self.matcher.delivery.supply(session, record.node, record.index, record.value)

    # Waiting for device work

    def _sync(self, session: RankSession, record: wire.Sync) -> None:
        clock = self._touch(session, record.clock, record.now_ps)
        tail = record.tail
        base_ps = max(tail.bound_ps, record.now_ps)
        if tail.node:
            node = session.node(tail.node)
            if node.end_ps is None or node.event is not None:
                node.waiters.append(SyncWaiter(clock, record.request, tail.offset_ps, base_ps))
                clock.block(record.request, record.why, node)
                return
            base_ps = max(base_ps, node.end_ps + tail.offset_ps)
        # Known for good: nothing that happens before can change it, so there is no need to wait for the
        # horizon.
        session.answer(record.request, base_ps)
        clock.now_ps = max(clock.now_ps, base_ps)

    def _query(self, session: RankSession, record: wire.Query) -> None:
        request, now_ps, tail = record.request, record.now_ps, record.tail
        clock = self._touch(session, record.clock, now_ps)
        if tail.bound_ps > now_ps or not tail.node:
            session.answer(request, 0 if tail.bound_ps > now_ps else 1)
            return
        node = session.node(tail.node)
        if node.end_ps is not None and node.event is None:
            session.answer(request, 1 if node.end_ps + tail.offset_ps <= now_ps else 0)
            return
        clock.block(request, "query", node)
        self._pushes += 1  # keeps the heap from comparing clocks where a rank uses a number twice
        entry = (now_ps, session.rank, request, self._pushes, clock, node, tail.offset_ps)
        heapq.heappush(self._queries, entry)

    def query_ps(self) -> int:
        """Time of the earliest unanswered query, INFINITY_PS if none."""
        return self._queries[0][0] if self._queries else INFINITY_PS

    def answer_query(self) -> None:
        """Answers the earliest query; all events up to its time must be final."""
        now_ps, _, request, _, clock, node, offset_ps = heapq.heappop(self._queries)
        ended = node.end_ps is not None and node.event is None and node.end_ps + offset_ps <= now_ps
        self._resume(clock, request, now_ps, 1 if ended else 0)

    def _resume(self, clock: Clock, request: int, time_ps: int, value: int | None = None) -> None:
        session = self.sessions[clock.rank]
        if session.state is not SessionState.LIVE:
            return
        session.answer(request, time_ps if value is None else value)
        if clock.state is ClockState.BLOCKED and clock.request == request:
            clock.heard_s = self.real_s
            self.horizon.resume(clock, time_ps)

    def _step(self, session: RankSession, record: wire.Step) -> None:
        self._touch(session, record.clock, record.now_ps)
        if record.index > session.steps:
            raise protocol_error(
                session.rank,
                f"ends step {record.index} after {session.steps} steps, so that some are missing",
            )
        session.steps = max(session.steps, record.index + 1)
        tail = record.tail
        bound_ps = tail.bound_ps
        if tail.node:
            node = session.node(tail.node)
            if node.end_ps is None or node.event is not None:
                node.waiters.append(StepWaiter(session.rank, record.index, tail.offset_ps, bound_ps))
                return
            bound_ps = max(bound_ps, node.end_ps + tail.offset_ps)
        self.statistics.step(session.rank, record.index, bound_ps)

    def _on_final(self, node: Node) -> None:
        end_ps = node.end_ps
        assert end_ps is not None
        for waiter in node.waiters:
            time_ps = max(waiter.base_ps, end_ps + waiter.offset_ps)
            if isinstance(waiter, SyncWaiter):
                self._resume(waiter.clock, waiter.request, time_ps)
            else:
                self.statistics.step(waiter.rank, waiter.index, time_ps)
        node.waiters = []
        operation = node.source
        if operation is not None:
            self.statistics.completed(operation, end_ps)
            # Operations and their nodes refer to each other; cut, they go at once.
            node.source = None
            operation.ready.operation = None

    # Store

    def _answer_all(self, answers: list[Answer]) -> None:
        for clock, request, time_ps in answers:
            self._resume(clock, request, time_ps)

    def _post(self, session: RankSession, record: wire.Post) -> None:
        self._touch(session, record.clock, record.now_ps, bound_only=self.store.unknown(record.key))
        self._answer_all(self.store.post(record.key, record.now_ps))

    def _wait(self, session: RankSession, record: wire.Wait) -> None:
        clock = self._touch(session, record.clock, record.now_ps)
        wait = Wait(clock, record.request, tuple(dict.fromkeys(record.keys)), record.now_ps)
        clock.block(record.request, record.why, wait)
        self._answer_all(self.store.wait(wait))

    def _waited(self, session: RankSession, record: wire.Waited) -> None:
        self.store.waited(session.rank, record.request)

    def _forget(self, session: RankSession, record: wire.Forget) -> None:
        now_ps = session.clocks[0].now_ps if 0 in session.clocks else 0
        self.store.forget(record.key, now_ps)

    def _add(self, session: RankSession, record: wire.Add) -> None:
        clock = self._touch(session, record.clock, record.now_ps)
        addition = Addition(clock, record.request, record.amount, record.result, record.now_ps)
        clock.block(record.request, f"addition to store key {record.key!r}", addition)
        self._answer_all(self.store.add(record.key, addition))
        self._answer_all(self.store.post(record.key, record.now_ps))

    def resume_due_wait(self) -> None:
        """Answers the store wait that is due."""
        self._answer_all([self.store.take_due()])

    def release_waits(self) -> bool:
        """Nothing else can move: lets go those waits that no rank can end. Returns True if there were any."""
        answers = self.store.release(self.scheduler.committed_ps)
        self._answer_all(answers)
        return bool(answers)

    # Reports

    def _stats(self, session: RankSession, record: wire.Stats) -> None:
        self.statistics.ranks[session.rank].update(record.account)

    def _fault(self, session: RankSession, record: wire.Fault) -> None:
        self.statistics.ranks[session.rank].faults.append(record.fault)

    def report_only(self, session: RankSession, record: wire.Record) -> None:
        """After the end of the job only what ranks report about themselves still counts."""
        if isinstance(record, (wire.Stats, wire.Fault, wire.Bye)):
            self._handlers[type(record)](session, record)
