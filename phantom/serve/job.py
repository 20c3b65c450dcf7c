"""One job: its engine, in a thread of its own, fed by a queue."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from msgspec.structs import replace

from netsim.cluster import ClusterSpec
from netsim.network import Network
from phantom.engine import Engine, EngineOptions, JobError
from phantom.engine.session import SessionState
from phantom.results.limits import Placement
from phantom.results.run_summary import Launch, Summary
from phantom.results.summary import summarize
from phantom.serve.recorder import Recorder
from phantom.wire.fields import AbortKind
from phantom.wire.messages import OpenJob, Progress

# How long RESOLVED may wait for company before it is sent by itself.
_FLUSH_S = 0.002
_TICK_S = 0.25
_DRAIN_S = 2.0
# A run that has opened its job watches it within this time.
_WATCH_GRACE_S = 30.0
# Summaries of the steps so far are made at most this often.
_PARTIAL_S = 1.0
SPOOL = "spool"
# How long a rank that comes again waits for the other ranks of the first launch to end.
_RELAUNCH_S = 20.0
# Records taken from the queue before events are processed and answers sent; bounds the latency of both.
_BATCHES_PER_ROUND = 64


class Partial(NamedTuple):
    """The summary so far; `number` counts up with each new one."""

    number: int
    summary: Summary


class Job:
    """Runs the engine. Every public method may be called from any thread."""

    def __init__(
        self,
        request: OpenJob,
        *,
        token: str,
        folder: Path,
        cluster: ClusterSpec,
        seed: int,
        options: EngineOptions,
    ) -> None:
        self.request = request
        self.token = token
        self.folder = folder
        self._cluster = cluster
        self._seed = seed
        self._options = options
        self._earlier: list[Launch] = []
        self._network, self._engine, self._recorder = self._make_engine()
        self._queue: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._outgoing: dict[int, queue.SimpleQueue[bytes | None]] = {}
        self._lock = threading.Lock()
        self._open_sessions = 0
        self._started_s = time.monotonic()
        self._shown_s = 0.0
        self.progress: Progress | None = None
        self.partial: Partial | None = None
        self._partial_due_s = 0.0
        self._partial_steps = 0
        self._watchers = 0
        self._was_watched = False
        self.aborted = threading.Event()
        self.closed = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="phantom-engine", daemon=True)
        self._thread.start()

    def _make_engine(self) -> tuple[Network, Engine, Recorder | None]:
        request = self.request
        network = Network(
            self._cluster,
            nodes=request.nodes,
            gpus_per_node=request.gpus_per_node,
            environment=request.environment,
            seed=self._seed,
        )
        engine = Engine(network, world_size=request.world_size, options=self._options)
        engine.statistics.placement = Placement(self._cluster, request.gpus_per_node)
        recorder = None
        if request.record_steps is not None:
            recorder = Recorder(
                self.folder / SPOOL,
                steps=request.record_steps,
                network=network,
                statistics=engine.statistics,
                communicators=lambda: engine.communicators,
            )
            engine.statistics.observer = recorder.completed
        return network, engine, recorder

    def _begin_again(self) -> None:
        """The command starts its ranks once more after all have ended (a warm-up before the real run): time
        begins anew, and the results are those of the last launch."""
        summary = self._summary({}, False)
        self._earlier.append(
            Launch(steps=len(summary.steps), step_virtual_s=summary.step_virtual_s, status=summary.status)
        )
        if self._recorder is not None:
            self._recorder.close()
        self._network, self._engine, self._recorder = self._make_engine()

    # Who is there

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """While a `phantom run` watches the job."""
        with self._lock:
            self._watchers += 1
            self._was_watched = True
        try:
            yield
        finally:
            with self._lock:
                self._watchers -= 1

    def is_live(self) -> bool:
        """Whether somebody still takes part: ranks, the run that watches, or one that is about to."""
        with self._lock:
            about_to = not self._was_watched and time.monotonic() - self._started_s < _WATCH_GRACE_S
            present = self._open_sessions > 0 or self._watchers > 0 or about_to
        return present and not self.closed.is_set()

    def describe(self) -> str:
        """Whose job this is, for others."""
        request = self.request
        age_s = time.monotonic() - self._started_s
        command = " ".join(request.command)[:60] or "unnamed"
        by = f", by {request.opened_by}" if request.opened_by else ""
        return f"{command}, {request.world_size} ranks, opened {age_s:.0f} s ago{by}"

    # Sessions

    def attach(self, rank: int) -> queue.SimpleQueue[bytes | None]:
        """Registers a session; returns the queue of what is to be sent to it (None = end of stream).

        Raises ValueError if the rank does not exist, RuntimeError if it has had a session already.
        """
        if not 0 <= rank < self.request.world_size:
            raise ValueError(f"rank {rank} is outside this job of {self.request.world_size} ranks")
        self._await_the_last_launch(rank)
        with self._lock:
            if rank in self._outgoing:
                if self._engine.session_state(rank) is SessionState.FINISHED:
                    raise RuntimeError(
                        f"rank {rank} has finished and is started again while other ranks of the first "
                        f"launch still run; remedy: let the command wait for its first program before it "
                        f"starts the second, or give each a `phantom run` of its own"
                    )
                raise RuntimeError(
                    f"rank {rank} has a session already: two processes run as the same rank. A script that "
                    f"starts its own processes wants `phantom run --launch node`."
                )
            outgoing: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
            self._outgoing[rank] = outgoing
            self._open_sessions += 1
        return outgoing

    def _await_the_last_launch(self, rank: int) -> None:
        """Where this rank ran to its end and comes again: begins anew once all others have ended too."""
        deadline_s = time.monotonic() + _RELAUNCH_S
        while True:
            with self._lock:
                if rank not in self._outgoing:
                    break
                if self._engine.session_state(rank) is not SessionState.FINISHED:
                    break
                if self._open_sessions == 0:
                    self._outgoing = {}
                    self._begin_again_in_the_engines_thread()
                    break
            if time.monotonic() > deadline_s:
                break
            time.sleep(0.01)

    def _begin_again_in_the_engines_thread(self) -> None:
        done = threading.Event()

        def begin() -> None:
            try:
                self._begin_again()
            finally:
                done.set()

        self._queue.put(begin)
        done.wait()

    def feed(self, rank: int, records: bytes, acked: int) -> None:
        """Hands a batch to the engine."""
        self._queue.put(lambda: self._engine.feed(rank, records, acked))

    def detach(self, rank: int, reason: str) -> None:
        """The session's stream has ended. Without a goodbye before, the rank is lost."""

        def end() -> None:
            self._engine.lost(rank, reason)
            self._engine.run()
            self._send(flush=True)
            self._outgoing[rank].put(None)
            with self._lock:
                self._open_sessions -= 1

        self._queue.put(end)

    def exited(self, rank: int, status: int) -> None:
        """A rank's process has ended. Its session, if any, says so itself."""
        with self._lock:
            if rank in self._outgoing or not 0 <= rank < self.request.world_size:
                return
        self._queue.put(lambda: self._engine.exited(rank, status))

    def abandoned(self) -> bool:
        """True if no session is open: the job is over or never began."""
        with self._lock:
            return self._open_sessions == 0

    # End

    def close(self, *, statuses: dict[str, int], interrupted: bool) -> Summary:
        """Ends the job and returns its summary."""
        deadline_s = time.monotonic() + _DRAIN_S
        while not self.abandoned() and not interrupted and time.monotonic() < deadline_s:
            time.sleep(0.01)
        result: queue.SimpleQueue[Summary | BaseException] = queue.SimpleQueue()

        def finish() -> None:
            outcome: Summary | BaseException
            try:
                try:
                    self._engine.run()
                finally:
                    if self._recorder is not None:
                        self._recorder.close()
                outcome = self._summary(statuses, interrupted)
            except BaseException as error:
                outcome = error
            try:
                # Also after an error: ranks that still wait are told that there is nothing to wait for.
                self._engine.abort(JobError(AbortKind.shutdown, "the job was closed"))
                self._send(flush=True)
            finally:
                self.closed.set()
                # Last: whoever has the summary may read the record and end this process.
                result.put(outcome)

        if self.closed.is_set():
            raise RuntimeError("the job is closed already")
        self._queue.put(finish)
        summary = result.get()
        self._thread.join(timeout=10)
        for outgoing in list(self._outgoing.values()):
            outgoing.put(None)
        if isinstance(summary, BaseException):
            raise summary
        return summary

    def _summary(self, statuses: dict[str, int], interrupted: bool) -> Summary:
        summary = summarize(
            self._engine,
            network=self._network,
            cluster=self._cluster.name,
            nodes=self.request.nodes,
            command=self.request.command,
            statuses=statuses,
            interrupted=interrupted,
            wall_s=time.monotonic() - self._started_s,
        )
        if self._earlier:
            summary = replace(summary, earlier_launches=tuple(self._earlier)).warned(
                f"the command started its ranks {len(self._earlier) + 1} times, one launch after the other; "
                f"these are the results of the last (earlier_launches in summary.json has the others)"
            )
        return summary

    # The engine's thread

    def _loop(self) -> None:
        while not self.closed.is_set():
            try:
                self._round()
            except Exception as error:
                # A fault of ours must end the job with a reason, not leave every rank waiting for an answer.
                traceback.print_exc()
                self._engine.abort(JobError(AbortKind.protocol, f"the simulator itself failed: {error!r}"))
                self._send(flush=True)

    def _round(self) -> None:
        action = self._next_action()
        taken = 0
        while action is not None:
            action()
            taken += 1
            if taken == _BATCHES_PER_ROUND or self.closed.is_set():
                break
            action = None if self._queue.empty() else self._queue.get()
        if not taken:
            self._engine.tick()
        self._engine.run()
        self._send(flush=not taken)
        self._show()

    def _next_action(self) -> Callable[[], None] | None:
        """Waits for something to do; meanwhile the network runs ahead. None after a while."""
        while self._queue.empty() and self._engine.run_ahead(8):
            pass
        try:
            return self._queue.get(timeout=_FLUSH_S)
        except queue.Empty:
            self._send(flush=True)
        try:
            return self._queue.get(timeout=_TICK_S)
        except queue.Empty:
            return None

    def _send(self, *, flush: bool) -> None:
        for rank, batches in self._engine.poll(flush=flush).items():
            outgoing = self._outgoing.get(rank)
            if outgoing is not None:
                for batch in batches:
                    outgoing.put(batch)
        if self._engine.failure is not None and not self.aborted.is_set():
            self.progress = self._describe()
            self.aborted.set()

    def _show(self) -> None:
        now_s = time.monotonic()
        if now_s - self._shown_s >= 0.1:
            self._shown_s = now_s
            self.progress = self._describe()
            self._keep_partial(self.progress.steps, now_s)

    def _keep_partial(self, steps: int, now_s: float) -> None:
        """Makes the summary so far when there is a new step, for at most a fiftieth of this thread's time."""
        if steps <= self._partial_steps or now_s < self._partial_due_s or self._engine.failure is not None:
            return
        summary = self._summary({}, True)
        number = self.partial.number + 1 if self.partial is not None else 1
        self.partial = Partial(number, summary)
        self._partial_steps = steps
        done_s = time.monotonic()
        self._partial_due_s = done_s + max(_PARTIAL_S, 50 * (done_s - now_s))

    def _describe(self) -> Progress:
        engine = self._engine
        horizon_ps = engine.horizon_ps()
        counts = engine.statistics.step_count_by_rank
        attached = [
            rank
            for rank in range(self.request.world_size)
            if engine.session_state(rank) is not SessionState.EXPECTED
        ]
        return Progress(
            virtual_s=(engine.statistics.last_ps if horizon_ps is None else horizon_ps) / 1e12,
            steps=min((counts[rank] for rank in attached), default=0),
            awaited=engine.awaited(),
            attached=len(attached),
            ranks=self.request.world_size,
        )

    def failure(self) -> JobError | None:
        """Why the engine ended the job, None if it did not."""
        return self._engine.failure
