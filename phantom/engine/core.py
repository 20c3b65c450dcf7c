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
from phantom.wire.records import PROTOCOL, EngineRecord, RankRecord

Record = list[Any]
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
        self._queries: list[tuple[int, int, int, Clock, Node, int]] = []
        self._handlers: dict[int, Callable[[RankSession, Record], None]] = {
            RankRecord.HELLO: self._hello,
            RankRecord.CLOCK: self._clock,
            RankRecord.CLOCK_END: self._clock_end,
            RankRecord.NODE: self._node,
            RankRecord.COLLECTIVE: self._collective,
            RankRecord.COMM: self._comm,
            RankRecord.P2P: self._p2p,
            RankRecord.SYNC: self._sync,
            RankRecord.QUERY: self._query,
            RankRecord.POST: self._post,
            RankRecord.WAIT: self._wait,
            RankRecord.FORGET: self._forget,
            RankRecord.ADD: self._add,
            RankRecord.STEP: self._step,
            RankRecord.STATS: self._stats,
            RankRecord.FAULT: self._fault,
            RankRecord.BYE: self._bye,
            RankRecord.TRANSFER: self._transfer,
            RankRecord.SUPPLY: self._supply,
            RankRecord.WAITED: self._waited,
        }
        for session in self.sessions:
            # A rank that has not attached may still emit from time 0 on, so it holds the horizon there.
            self._new_clock(session, 0, 0)

    def handle(self, session: RankSession, record: Record) -> None:
        """Applies one record. Raises JobError if it ends the job."""
        handler = self._handlers.get(record[0])
        if handler is None:
            raise protocol_error(session.rank, f"sends a record of unknown type {record[0]!r}")
        if session.state is not SessionState.LIVE and handler != self._hello:
            raise protocol_error(
                session.rank, f"sends record type {record[0]} while it is {session.state.value}"
            )
        handler(session, record)

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

    def _clock(self, session: RankSession, record: Record) -> None:
        # Nothing happens at the time of a bare bound (a thread that is joined long after it began, and issues
        # nothing, tells one), so a late one moves no result.
        self._touch(session, record[1], record[2], bound_only=True)

    def _clock_end(self, session: RankSession, record: Record) -> None:
        clock = session.clocks.pop(record[1], None)
        if clock is not None:
            clock.state = ClockState.ENDED

    def _hello(self, session: RankSession, record: Record) -> None:
        hello = record[1]
        if hello.get("protocol") != PROTOCOL:
            raise protocol_error(
                session.rank, f"speaks protocol {hello.get('protocol')!r}, this simulator speaks {PROTOCOL}"
            )
        if session.state is not SessionState.EXPECTED:
            raise protocol_error(session.rank, f"attaches a second time (it is {session.state.value})")
        world_size = hello.get("world_size") or len(self.sessions)
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
        session.hello = hello
        session.clocks[0].heard_s = self.real_s
        session.send([int(EngineRecord.WELCOME), {"protocol": PROTOCOL, "world_size": world_size}])

    def finish(self, session: RankSession) -> None:
        """The rank emits nothing any more."""
        session.state = SessionState.FINISHED
        for clock in session.clocks.values():
            clock.state = ClockState.ENDED
        session.clocks.clear()
        self.matcher.delivery.drop(session)

    def _bye(self, session: RankSession, record: Record) -> None:
        self.finish(session)

    # Device work

    def _tail(self, session: RankSession, tail: Record, now_ps: int) -> LookedUpTail:
        node_id, offset_ps, bound_ps = tail
        node = session.node(node_id) if node_id else None
        return node, offset_ps, max(bound_ps, now_ps)

    def _node(self, session: RankSession, record: Record) -> None:
        _, node_id, deps, bound_ps = record
        node = Node(floor_ps=bound_ps)
        for dep, offset_ps in deps:
            node.require(session.node(dep), offset_ps)
        session.add(node_id, node)
        self._graph.try_resolve(node)

    def _comm(self, session: RankSession, record: Record) -> None:
        _, key, ranks, backend, label = record
        self.matcher.declare(session, key, ranks, backend, label)

    def _collective(self, session: RankSession, record: Record) -> None:
        _, node_id, key, seq, kind, dtype, size, root, tail, clock_id, now_ps, value, extra = record
        self._touch(session, clock_id, now_ps)
        comm = self.matcher.communicator(session, key)
        extra = extra or {}
        post = Post(
            rank=session.rank,
            group_rank=comm.group_rank[session.rank],
            kind=kind,
            dtype=dtype,
            size_bytes=size,
            root=root,
            where=extra.get("where") or "",
            node_id=node_id,
            want=bool(extra.get("want")),
            reduction=extra.get("op") or "",
            factor=extra.get("factor"),
            in_splits=extra.get("in_splits"),
            out_splits=extra.get("out_splits"),
        )
        looked_up = self._tail(session, tail, now_ps)
        operation = self.matcher.collective(session, comm, seq, post, looked_up, value)
        session.last_operation = operation
        session.add(node_id, operation.done)
        self._graph.try_resolve(operation.ready)

    def _p2p(self, session: RankSession, record: Record) -> None:
        _, node_id, key, tail, clock_id, now_ps, entries, where = record
        self._touch(session, clock_id, now_ps)
        comm = self.matcher.communicator(session, key)
        looked_up = self._tail(session, tail, now_ps)
        operations = []
        for index, (peer, is_send, seq, size, dtype, value, *want) in enumerate(entries):
            post = Post(
                rank=session.rank,
                group_rank=comm.group_rank[session.rank],
                kind="p2p",
                dtype=dtype,
                size_bytes=size,
                root=-1,
                where=where or "",
                node_id=node_id,
                want=bool(want and want[0]),
            )
            operations.append(
                self.matcher.message(session, comm, peer, bool(is_send), seq, post, looked_up, value, index)
            )
        if len(operations) == 1:
            session.add(node_id, operations[0].done)
        else:
            node = Node(floor_ps=looked_up[2])
            for operation in operations:
                node.require(operation.done, 0)
            session.add(node_id, node)
            self._graph.try_resolve(node)
        for operation in operations:
            session.last_operation = operation
            self._graph.try_resolve(operation.ready)

    def _transfer(self, session: RankSession, record: Record) -> None:
        _, node_id, direction, size, pinned, tail, clock_id, now_ps = record
        self._touch(session, clock_id, now_ps)
        post = Post(
            rank=session.rank,
            group_rank=0,
            kind="transfer",
            dtype="uint8",
            size_bytes=size,
            root=-1,
            where="",
            node_id=node_id,
        )
        looked_up = self._tail(session, tail, now_ps)
        operation = self.matcher.transfer(session, direction, size, bool(pinned), post, looked_up)
        session.add(node_id, operation.done)
        self._graph.try_resolve(operation.ready)

    def _supply(self, session: RankSession, record: Record) -> None:
        _, node_id, index, value = record
        self.matcher.delivery.supply(session, node_id, index, value)

    # Waiting for device work

    def _sync(self, session: RankSession, record: Record) -> None:
        _, request, clock_id, tail, now_ps, why = record
        clock = self._touch(session, clock_id, now_ps)
        node_id, offset_ps, bound_ps = tail
        base_ps = max(bound_ps, now_ps)
        if node_id:
            node = session.node(node_id)
            if node.end_ps is None or node.event is not None:
                node.waiters.append(SyncWaiter(clock, request, offset_ps, base_ps))
                clock.block(request, why, node)
                return
            base_ps = max(base_ps, node.end_ps + offset_ps)
        # Known for good: nothing that happens before can change it, so there is no need to wait for the
        # horizon.
        session.answer(request, base_ps)
        clock.now_ps = max(clock.now_ps, base_ps)

    def _query(self, session: RankSession, record: Record) -> None:
        _, request, clock_id, tail, now_ps = record
        clock = self._touch(session, clock_id, now_ps)
        node_id, offset_ps, bound_ps = tail
        if bound_ps > now_ps or not node_id:
            session.answer(request, 0 if bound_ps > now_ps else 1)
            return
        node = session.node(node_id)
        if node.end_ps is not None and node.event is None:
            session.answer(request, 1 if node.end_ps + offset_ps <= now_ps else 0)
            return
        clock.block(request, "query", node)
        heapq.heappush(self._queries, (now_ps, session.rank, request, clock, node, offset_ps))

    def query_ps(self) -> int:
        """Time of the earliest unanswered query, INFINITY_PS if none."""
        return self._queries[0][0] if self._queries else INFINITY_PS

    def answer_query(self) -> None:
        """Answers the earliest query; all events up to its time must be final."""
        now_ps, _, request, clock, node, offset_ps = heapq.heappop(self._queries)
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

    def _step(self, session: RankSession, record: Record) -> None:
        _, index, tail, clock_id, now_ps = record
        self._touch(session, clock_id, now_ps)
        node_id, offset_ps, bound_ps = tail
        if node_id:
            node = session.node(node_id)
            if node.end_ps is None or node.event is not None:
                node.waiters.append(StepWaiter(session.rank, index, offset_ps, bound_ps))
                return
            bound_ps = max(bound_ps, node.end_ps + offset_ps)
        self.statistics.step(session.rank, index, bound_ps)

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

    def _post(self, session: RankSession, record: Record) -> None:
        _, key, clock_id, now_ps = record
        self._touch(session, clock_id, now_ps, bound_only=self.store.unknown(key))
        self._answer_all(self.store.post(key, now_ps))

    def _wait(self, session: RankSession, record: Record) -> None:
        _, request, clock_id, keys, now_ps, why = record
        clock = self._touch(session, clock_id, now_ps)
        wait = Wait(clock, request, tuple(dict.fromkeys(keys)), now_ps)
        clock.block(request, why, wait)
        self._answer_all(self.store.wait(wait))

    def _waited(self, session: RankSession, record: Record) -> None:
        self.store.waited(session.rank, record[1])

    def _forget(self, session: RankSession, record: Record) -> None:
        if len(record) > 2:
            now_ps = self._touch(session, record[2], record[3]).now_ps
        else:
            now_ps = session.clocks[0].now_ps if 0 in session.clocks else 0
        self.store.forget(record[1], now_ps)

    def _add(self, session: RankSession, record: Record) -> None:
        _, request, clock_id, key, amount, result, now_ps = record
        clock = self._touch(session, clock_id, now_ps)
        addition = Addition(clock, request, amount, result, now_ps)
        clock.block(request, f"addition to store key {key!r}", addition)
        self._answer_all(self.store.add(key, addition))
        self._answer_all(self.store.post(key, now_ps))

    def resume_due_wait(self) -> None:
        """Answers the store wait that is due."""
        self._answer_all([self.store.take_due()])

    def release_waits(self) -> bool:
        """Nothing else can move: lets go those waits that no rank can end. Returns True if there were any."""
        answers = self.store.release(self.scheduler.committed_ps)
        self._answer_all(answers)
        return bool(answers)

    # Reports

    def _stats(self, session: RankSession, record: Record) -> None:
        self.statistics.ranks[session.rank].update(record[1])

    def _fault(self, session: RankSession, record: Record) -> None:
        self.statistics.ranks[session.rank].faults.append(record[1])

    def report_only(self, session: RankSession, record: Record) -> None:
        """After the end of the job only what ranks report about themselves still counts."""
        if record[0] == RankRecord.STATS:
            self._stats(session, record)
        elif record[0] == RankRecord.FAULT:
            self._fault(session, record)
        elif record[0] == RankRecord.BYE:
            self.finish(session)
