"""Watches a running job: ends it when a rank fails, the simulator dies or the user interrupts."""

from __future__ import annotations

import queue
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from phantom.launch.agent import Agent
from phantom.launch.logs import Follower, tail
from phantom.launch.nodes import NodeAgents
from phantom.launch.plan import PlannedProcess
from phantom.launch.simulator import Gone, SimulatorClient, SimulatorProcess
from phantom.terminal import progress as display
from phantom.wire.messages import Aborted, Progress

FAILURE_GRACE_S = 3.0
"""After the first failed rank the others get so long to end by themselves: what they print may explain it."""

ABORT_GRACE_S = 10.0
"""The same after the simulator has ended the job: every rank raises and prints where it was."""

TERMINATE_GRACE_S = 3.0
POLL_S = 0.05


@dataclass(frozen=True, kw_only=True)
class Failure:
    """The process whose end ended the job."""

    name: str
    rank: int | None
    status: int
    log: str
    log_tail: str

    @property
    def follows(self) -> bool:
        """Whether the process only followed another's end: the simulator told it that a peer is gone."""
        return any(text in self.log_tail for text in ("phantom: peer-lost", "phantom: shutdown"))

    @property
    def exit_status(self) -> int:
        """As a shell reports it: 128 + n for signal n."""
        return 128 - self.status if self.status < 0 else self.status

    def describe(self) -> str:
        """The message for the user."""
        if self.status < 0:
            try:
                how = f"was killed by {signal.Signals(-self.status).name}"
            except ValueError:
                how = f"was killed by signal {-self.status}"
        else:
            how = f"ended with status {self.status}"
        text = f"{self.name} {how}; its output: {self.log}"
        if self.log_tail:
            text += "\n" + "\n".join(f"    {line}" for line in self.log_tail.splitlines())
        return text


@dataclass
class Outcome:
    """How the job went."""

    statuses: dict[str, int] = field(default_factory=dict)
    failure: Failure | None = None
    interrupted: int | None = None
    stuck: str | None = None  # what was awaited when the user interrupted a job in which nothing moved
    aborted: Aborted | None = None
    simulator_gone: str | None = None
    agent_gone: str | None = None  # how the process that starts the ranks ended
    lost: str | None = None  # a simulated node that went away
    wall_s: float = 0.0

    @property
    def was_interrupted(self) -> bool:
        """Whether the user ended it; who watches servers stops the others when one is lost, which is none."""
        return self.interrupted is not None and self.lost is None


class Supervisor:
    """Runs one job to its end. `events` is what agent, simulator and signal handlers write to."""

    def __init__(
        self,
        *,
        agent: Agent | NodeAgents,
        simulator: SimulatorProcess | None,
        client: SimulatorClient,
        processes: Sequence[PlannedProcess],
        events: queue.SimpleQueue[tuple[str, Any]],
        follower: Follower,
        progress: display.Progress,
        quiet: bool = False,
        keep: Callable[[dict[str, Any]], None] = lambda summary: None,
        log_lines: int = 20,
    ) -> None:
        self._agent = agent
        self._simulator = simulator
        self._client = client
        self._processes = {process.name: process for process in processes}
        self._running = set(self._processes)
        self._events = events
        self._follower = follower
        self._progress = progress
        self._quiet = quiet
        self._keep = keep
        self._log_lines = log_lines
        self._outcome = Outcome()
        self._deadline_s: float | None = None
        self._next_signal: int = signal.SIGTERM
        self._signalled = False
        self._killed = False

    def run(self) -> Outcome:
        """Waits for the end of every process."""
        started_s = time.monotonic()
        while self._running:
            self._take(POLL_S)
            self._show()
            self._check_simulator()
            self._escalate()
        self._show(last=True)
        self._outcome.wall_s = time.monotonic() - started_s
        return self._outcome

    def _show(self, *, last: bool = False) -> None:
        if self._quiet:
            return
        if last or self._follower.has_news():
            self._progress.clear()
        self._follower.copy(last=last)
        if not last:
            self._progress.show()

    def _take(self, wait_s: float) -> None:
        handlers: dict[str, Callable[[Any], None]] = {
            "agent": self._from_agent,
            "simulator": self._from_simulator,
            "signal": self._from_user,
        }
        try:
            while True:
                source, message = self._events.get(timeout=wait_s)
                handlers[source](message)
                wait_s = 0.0
        except queue.Empty:
            return

    def _from_agent(self, message: dict[str, Any]) -> None:
        event = message["event"]
        if event == "ended":
            self._ended(message["name"], int(message["status"]))
        elif event == "lost":
            if self._outcome.lost is None:
                self._outcome.lost = str(message["reason"])
            for name in message["processes"]:
                self._ended(name, -signal.SIGKILL, lost=True)
        elif event == "gone" and self._running:
            # Its children die with it, so that none of them is to blame.
            if not self._signalled:
                self._outcome.agent_gone = str(message.get("reason") or "it ended")
            self._signalled = True
            for name in sorted(self._running):
                self._ended(name, -signal.SIGKILL)

    def _ended(self, name: str, status: int, *, lost: bool = False) -> None:
        if name not in self._running:
            return
        self._running.discard(name)
        self._outcome.statuses[name] = status
        process = self._processes[name]
        if process.rank is not None and self._outcome.simulator_gone is None:
            self._client.rank_exited(process.rank, status)
        if status != 0 and (lost or not self._signalled):
            failure = Failure(
                name=name,
                rank=process.rank,
                status=status,
                log=str(process.log),
                log_tail=tail(process.log, self._log_lines),
            )
            # A rank that ends because the simulator told it so is not the cause; the other one may end later.
            if self._outcome.failure is None or (self._outcome.failure.follows and not failure.follows):
                self._outcome.failure = failure
            self._end_after(FAILURE_GRACE_S)

    def _from_simulator(self, message: Progress | Gone) -> None:
        if isinstance(message, Gone):
            if self._running and self._simulator is None:
                self._simulator_gone(message.reason)
            return
        if message.summary is not None:
            self._keep(message.summary)
        if message.abort is not None:
            if self._outcome.aborted is None:
                self._outcome.aborted = message.abort
                self._end_after(ABORT_GRACE_S)
            return
        self._progress.update(
            {
                "virtual_s": message.virtual_s,
                "steps": message.steps,
                "awaited": message.awaited,
                "attached": message.attached,
                "ranks": message.ranks,
            }
        )

    def _from_user(self, number: int) -> None:
        if self._outcome.interrupted is not None:
            self._agent.signal(signal.SIGKILL)  # asked twice
            self._killed = True
            return
        self._outcome.interrupted = number
        self._outcome.stuck = self._progress.stuck()
        self._signalled = True
        self._agent.signal(signal.SIGTERM)
        self._next_signal = signal.SIGKILL
        self._deadline_s = time.monotonic() + (0.0 if self._agent.is_stopped() else TERMINATE_GRACE_S)

    def _check_simulator(self) -> None:
        if self._simulator is not None and self._outcome.simulator_gone is None and self._running:
            status = self._simulator.poll()
            if status is not None:
                how = f"killed by signal {-status}" if status < 0 else f"status {status}"
                self._simulator_gone(f"its process ended ({how})\n{self._simulator.log_tail()}".rstrip())

    def _simulator_gone(self, reason: str) -> None:
        self._outcome.simulator_gone = reason
        self._end_after(FAILURE_GRACE_S)

    def _end_after(self, grace_s: float) -> None:
        deadline_s = time.monotonic() + grace_s
        if self._deadline_s is None or deadline_s < self._deadline_s:
            self._deadline_s = deadline_s

    def _escalate(self) -> None:
        if self._deadline_s is None or time.monotonic() < self._deadline_s:
            return
        self._signalled = True
        if self._killed:
            self._agent.kill()  # it does not do what it is asked: it may be stopped itself
        self._agent.signal(self._next_signal)
        self._killed = self._next_signal == signal.SIGKILL
        self._next_signal = signal.SIGKILL
        self._deadline_s = time.monotonic() + TERMINATE_GRACE_S
