"""The event loop: events in virtual-time order, never ahead of a clock that could still change them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from netsim.errors import OperationError
from phantom.engine import deadlock
from phantom.engine.clocks import INFINITY_PS, Clock, ClockState
from phantom.engine.core import Core
from phantom.engine.errors import JobError
from phantom.engine.matching import Communicator
from phantom.engine.options import EngineOptions
from phantom.engine.scheduler import Network
from phantom.engine.session import SessionState
from phantom.engine.statistics import Statistics
from phantom.wire import schema as wire
from phantom.wire.fields import AbortKind
from phantom.wire.limits import FUTURE_KEY, THREAD_KEY
from phantom.wire.records import decode

_MOST_TEXT = 1 << 19
_SILENT_SECONDARY = (
    "a thread's clock was silent and no longer holds the others back; results may depend on host load"
)
_NEVER_ATTACHED = "a rank used no device and joined no group for long; the others go on without it"
_SILENT_MAIN = (
    "A RANK'S MAIN CLOCK was silent and no longer holds the others back; results depend on host load"
)


class Engine:
    """Clocks, matching, store and network of one job. Pure Python, no gRPC, one thread.

    Feed batches of records with `feed`, then call `run` and send what `poll` returns. Results are a function
    of the records alone, whatever the order in which those of different ranks arrive.

    `network` is a netsim.Network. `now` is the host's clock in seconds, used for the silence rules only.
    """

    def __init__(
        self,
        network: Network,
        *,
        world_size: int,
        options: EngineOptions | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._core = Core(network, world_size=world_size, options=options or EngineOptions())
        self._now = now
        self._idle_since_s: float | None = None
        self._fed_s = now()
        self.failure: JobError | None = None
        self.records = 0
        self._core.real_s = now()

    @property
    def communicators(self) -> Mapping[str, Communicator]:
        """Communicators declared so far, by key."""
        return self._core.matcher.communicators

    @property
    def statistics(self) -> Statistics:
        """Steps, collectives, rank reports and warnings so far."""
        return self._core.statistics

    @property
    def scheduler_counts(self) -> dict[str, int]:
        """Events made final, rollbacks, and events undone by them."""
        scheduler = self._core.scheduler
        return {
            "events": scheduler.events,
            "rollbacks": scheduler.rollbacks,
            "undone_events": scheduler.undone_events,
        }

    @property
    def world_size(self) -> int:
        """Ranks that take part: what the first HELLO said, until then the size of the job."""
        return self._core.world_size or len(self._core.sessions)

    @property
    def committed_ps(self) -> int:
        """Time of the last event that is final."""
        return self._core.scheduler.committed_ps

    def node_count(self) -> int:
        """Size of all node tables together, for tests and progress."""
        return sum(len(session.nodes) for session in self._core.sessions)

    def session_state(self, rank: int) -> SessionState:
        """Where the rank is in its life."""
        return self._core.sessions[rank].state

    def finished(self) -> bool:
        """True once every rank has said goodbye or is lost."""
        return all(s.state in (SessionState.FINISHED, SessionState.LOST) for s in self._core.sessions)

    # Input

    def feed(self, rank: int, records: bytes, acked: int = 0) -> None:
        """Takes one RankBatch. Errors in it abort the job; nothing is raised. Call `run` afterwards."""
        core = self._core
        core.real_s = self._fed_s = self._now()
        self._idle_since_s = None
        session = core.sessions[rank]
        decoded = decode(records)
        self.records += len(decoded.records)
        for record in decoded.records:
            if self.failure is not None:
                core.report_only(session, record)
                continue
            try:
                core.handle(session, record)
            except JobError as error:
                self.abort(error)
        if decoded.error is not None:
            # What the rank told before still counts; what it tells afterwards may not be in step with it.
            self.abort(JobError(AbortKind.protocol, f"rank {rank}: {decoded.error}"))
        session.acknowledge(acked)

    def lost(self, rank: int, reason: str) -> None:
        """The session ended without BYE: the job cannot go on."""
        session = self._core.sessions[rank]
        if session.state in (SessionState.FINISHED, SessionState.LOST):
            return
        self._core.finish(session)
        session.state = SessionState.LOST
        self.abort(JobError(AbortKind.peer_lost, f"rank {rank} is gone: {reason}"))

    def exited(self, rank: int, status: int) -> None:
        """The rank's process has ended; matters if it never attached or was cut off."""
        session = self._core.sessions[rank]
        if session.state is SessionState.EXPECTED and status == 0:
            self._core.finish(session)
        elif session.state in (SessionState.EXPECTED, SessionState.LIVE):
            self.lost(rank, f"its process ended with status {status}")

    def abort(self, error: JobError) -> None:
        """Ends the job: every live rank is told once."""
        if self.failure is not None:
            return
        self.failure = error
        for session in self._core.sessions:
            if session.state is SessionState.LIVE:
                session.send(wire.Abort(error.kind, error.message[:_MOST_TEXT]))

    # The loop

    def run(self) -> None:
        """Processes every event that is final by now, in time order: completions, starts, answers."""
        if self.failure is not None:
            return
        try:
            self._run()
        except JobError as error:
            self.abort(error)
        except OperationError as error:
            self.abort(JobError(AbortKind.protocol, f"the network cannot carry an operation: {error}"))

    def _run(self) -> None:
        core = self._core
        scheduler = core.scheduler
        horizon = core.horizon
        store = core.store
        while True:
            horizon_ps = horizon.value_ps()
            event_ps = scheduler.next_event_ps()
            query_ps = core.query_ps()
            due_ps = store.due_ps()
            if due_ps <= min(horizon_ps, event_ps, query_ps) and due_ps != INFINITY_PS:
                core.resume_due_wait()
            elif query_ps <= horizon_ps and query_ps < event_ps:
                core.answer_query()
            elif event_ps < horizon_ps:
                # Strictly below: a clock at that very time may still start something then.
                scheduler.commit_next()
            elif horizon_ps != INFINITY_PS or not self._stuck():
                break
        scheduler.release_history()

    def run_ahead(self, max_events: int = 64) -> bool:
        """Advances the network beyond the horizon on what is known. True if there may be more to do."""
        if self.failure is not None or not self._core.options.lookahead:
            return False
        try:
            return self._core.scheduler.run_ahead(max_events) == max_events
        except OperationError as error:
            self.abort(JobError(AbortKind.protocol, f"the network cannot carry an operation: {error}"))
            return False

    def _stuck(self) -> bool:
        """No clock runs and nothing is pending. Returns True if something could be set going again."""
        core = self._core
        if core.release_waits():
            return True
        clocks = [clock for session in core.sessions for clock in session.clocks.values()]
        blocked = any(clock.state is ClockState.BLOCKED for clock in clocks)
        unmatched = any(comm.collectives or comm.messages for comm in core.matcher.communicators.values())
        if not blocked and not unmatched:
            return False
        unposted = core.store.unposted()
        if any(
            key.startswith((THREAD_KEY, FUTURE_KEY))
            for wait in unposted
            for key in core.store.missing_keys(wait)
        ):
            grace_s = core.options.join_grace_s
        elif any(clock.state is ClockState.SILENT for clock in clocks):
            grace_s = core.options.stall_silence_s
        elif unposted:
            grace_s = core.options.outside_grace_s
        else:
            grace_s = 0.0
        if self._idle_since_s is None:
            self._idle_since_s = core.real_s
        if self._now() - self._idle_since_s < grace_s:
            return False
        raise JobError(AbortKind.deadlock, self.describe_deadlock())

    def describe_deadlock(self) -> str:
        """Names, per rank, the operation, group, sequence number and peers it waits for."""
        core = self._core
        return deadlock.report(
            core.sessions, core.matcher.communicators, core.store, core.scheduler.committed_ps
        )

    # Output

    def poll(self, *, flush: bool = False) -> dict[int, list[bytes]]:
        """Returns batches to send, by rank. Without `flush`, RESOLVED alone waits for company."""
        out: dict[int, list[bytes]] = {}
        sessions = self._core.sessions
        outgoing = self._core.outgoing
        for rank in range(len(sessions)) if flush else sorted(outgoing):
            batches = sessions[rank].take()
            if batches:
                out[rank] = batches
        outgoing.clear()
        return out

    # Real time

    def tick(self) -> None:
        """Applies the silence rules. Call it every fraction of a second while nothing arrives."""
        if self.failure is not None:
            return
        core = self._core
        options = core.options
        core.real_s = self._now()
        running = core.horizon.running()
        if not running:
            self.run()
            return
        nothing_pending = core.scheduler.next_event_ps() == INFINITY_PS and core.query_ps() == INFINITY_PS
        for clock in running:
            limit_s = options.main_silence_s if clock.clock_id == 0 else options.secondary_silence_s
            heard_s = clock.heard_s
            if nothing_pending:
                limit_s = options.stall_silence_s
            if core.sessions[clock.rank].state is SessionState.EXPECTED:
                limit_s = options.attach_silence_s
                heard_s = self._fed_s
            if core.real_s - heard_s < limit_s or (nothing_pending and clock.clock_id == 0):
                return
        for clock in running:
            self._silence(clock)
        self.run()

    def _silence(self, clock: Clock) -> None:
        clock.state = ClockState.SILENT
        if self._core.sessions[clock.rank].state is SessionState.EXPECTED:
            self.statistics.warn(f"{_NEVER_ATTACHED} (rank {clock.rank})")
        elif clock.clock_id == 0:
            self.statistics.warn(f"{_SILENT_MAIN} (rank {clock.rank})")
        else:
            self.statistics.warn(f"{_SILENT_SECONDARY} (rank {clock.rank})")

    def awaited(self) -> str:
        """What holds virtual time back right now, for progress displays."""
        core = self._core
        holder = core.horizon.holder()
        if holder is None:
            return "the processes to end" if self.finished() else "all ranks are blocked"
        session = core.sessions[holder.rank]
        if session.state is SessionState.EXPECTED:
            return f"rank {holder.rank}, which has not attached yet"
        return f"rank {holder.rank}, whose clock is at {holder.now_ps / 1e12:.6f} s"

    def horizon_ps(self) -> int | None:
        """Nothing before this time can change any more; None when no clock runs."""
        value_ps = self._core.horizon.value_ps()
        return None if value_ps == INFINITY_PS else value_ps
