"""One job: its engine, in a thread of its own, fed by a queue."""

from __future__ import annotations

import queue
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from netsim.cluster import ClusterSpec
from netsim.network import Network
from phantom.engine import Engine, EngineOptions, JobError
from phantom.engine.session import SessionState
from phantom.results.limits import Placement
from phantom.results.run_summary import Launch, Summary
from phantom.results.summary import summarize
from phantom.serve.recorder import Recorder

# How long RESOLVED may wait for company before it is sent by itself.
_FLUSH_S = 0.002
_TICK_S = 0.25
_DRAIN_S = 2.0
# How long a rank that comes again waits for the other ranks of the first launch to end.
_RELAUNCH_S = 20.0
# Records taken from the queue before events are processed and answers sent; bounds the latency of both.
_BATCHES_PER_ROUND = 64


@dataclass(frozen=True, kw_only=True)
class JobRequest:
    """What `phantom run` says of the job. Raises ValueError (`parse`) naming the field that is wrong."""

    world_size: int
    nodes: int
    gpus_per_node: int
    command: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    spool: tuple[Path | None, tuple[int, int]] | None = None
    out: Path | None = None

    @staticmethod
    def parse(message: dict[str, Any]) -> JobRequest:
        """Checks an OpenJob message."""
        counts: dict[str, int] = {}
        for name in ("world_size", "nodes", "gpus_per_node"):
            value = message.get(name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ValueError(f"OpenJob: {name} must be a whole number of at least 1, not {value!r}")
            counts[name] = value
        if counts["world_size"] > counts["nodes"] * counts["gpus_per_node"]:
            raise ValueError(
                f"OpenJob: world_size {counts['world_size']} is more than {counts['nodes']} nodes x "
                f"{counts['gpus_per_node']} GPUs"
            )
        environment = message.get("environment") or {}
        options = message.get("options") or {}
        if not isinstance(environment, dict) or not isinstance(options, dict):
            raise ValueError("OpenJob: environment and options must be maps")
        command = message.get("command") or []
        return JobRequest(
            **counts,
            command=tuple(str(word) for word in command),
            environment={str(key): str(value) for key, value in environment.items()},
            options=options,
            spool=Recorder.wanted(message),
            out=Path(message["out"]) if isinstance(message.get("out"), str) else None,
        )


class Job:
    """Runs the engine. Every public method may be called from any thread."""

    def __init__(
        self, request: JobRequest, *, cluster: ClusterSpec, seed: int, options: EngineOptions
    ) -> None:
        self.request = request
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
        self.progress: dict[str, Any] = {}
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
        if request.spool is not None:
            folder, steps = request.spool
            assert folder is not None
            recorder = Recorder(
                folder,
                steps=steps,
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
                self._engine.abort(JobError("shutdown", "the job was closed"))
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
                self._engine.abort(JobError("protocol", f"the simulator itself failed: {error!r}"))
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

    def _describe(self) -> dict[str, Any]:
        engine = self._engine
        horizon_ps = engine.horizon_ps()
        counts = engine.statistics.step_count_by_rank
        attached = [
            rank
            for rank in range(self.request.world_size)
            if engine.session_state(rank) is not SessionState.EXPECTED
        ]
        return {
            "virtual_s": (engine.statistics.last_ps if horizon_ps is None else horizon_ps) / 1e12,
            "steps": min((counts[rank] for rank in attached), default=0),
            "awaited": engine.awaited(),
            "attached": len(attached),
            "ranks": self.request.world_size,
        }

    def failure(self) -> JobError | None:
        """Why the engine ended the job, None if it did not."""
        return self._engine.failure
