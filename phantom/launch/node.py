"""`phantom node`: this machine or container plays one simulated node of a run elsewhere (nodes.py)."""

from __future__ import annotations

import queue
import signal
import socket
import sys
import threading
import time
from pathlib import Path
from typing import Any

from interpose import environment
from interpose.startup import pth
from phantom.launch import node_messages as messages
from phantom.launch import orphans
from phantom.launch.agent import Agent
from phantom.launch.command import parse
from phantom.launch.errors import PhantomError, SimulatorError, UsageError
from phantom.launch.launchers import LOOPBACK
from phantom.launch.link import BadMessage, Link
from phantom.launch.nodes import split_address
from phantom.launch.plan import Job, PlannedProcess, plan
from phantom.launch.ports import free_ports
from phantom.launch.preparation import prepare_interpreter

CONNECT_TIMEOUT_S = 120.0
RETRY_S = 0.25
GOODBYE_S = 600.0
"""After the end the run writes its results; a container that ended earlier would look like one that is
lost.
"""

LEAVE_S = 1.0
"""So long a node outlives its run, so that the run's is the first end that is seen."""


class Node:
    """One node's life. `address` is where the other nodes reach this one; `ready_file` appears when it has
    joined.
    """

    def __init__(
        self,
        *,
        join: str,
        number: int,
        token: str = "",
        address: str | None = None,
        ready_file: Path | None = None,
    ) -> None:
        self._run_host, self._run_port = split_address(join, "--join")
        self._number = number
        self._token = token
        self._host = socket.gethostname()
        self._address = address or self._host
        self._ready_file = ready_file
        self._events: queue.SimpleQueue[tuple[str, Any]] = queue.SimpleQueue()
        self._agent: Agent | None = None
        self._planned: list[PlannedProcess] = []
        self._mark: str | None = None
        self._link: Link[messages.AnyToNode] | None = None

    def run(self) -> int:
        """Joins, does what the run says, and leaves with it.

        Returns 0, or 128 + n where signal n ended it before it had joined. Raises UsageError where the run
        refuses this node, SimulatorError where there is no run or it ends without a word.
        """
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, lambda n, _: self._events.put(("signal", n)))
        try:
            link = self._connect()
            if link is None:
                return 128 + signal.SIGTERM
            self._link = link
            link.send(
                messages.Hello(
                    protocol=messages.PROTOCOL,
                    node=self._number,
                    host=self._host,
                    address=self._address,
                    port=free_ports(1)[0],
                    token=self._token,
                )
            )
            threading.Thread(target=self._read, args=(link,), name="phantom-link", daemon=True).start()
            self._say(f"joined {self._run_host}:{self._run_port} as node {self._number}")
            if self._ready_file is not None:
                self._ready_file.touch()
            return self._serve(link)
        finally:
            self._end()

    def _say(self, text: str) -> None:
        sys.stderr.write(f"phantom: {text}\n")
        sys.stderr.flush()

    def _connect(self) -> Link[messages.AnyToNode] | None:
        deadline_s = time.monotonic() + CONNECT_TIMEOUT_S
        while True:
            try:
                connection = socket.create_connection((self._run_host, self._run_port), timeout=5)
                return Link(connection, messages.TO_NODE)
            except OSError as error:
                if time.monotonic() > deadline_s:
                    raise SimulatorError(
                        f"no run waits for nodes at {self._run_host}:{self._run_port} ({error}); start it "
                        f"with `phantom run --await-nodes`"
                    ) from None
            try:
                self._events.get(timeout=RETRY_S)
                return None  # only a signal can have arrived
            except queue.Empty:
                continue

    def _read(self, link: Link[messages.AnyToNode]) -> None:
        try:
            while (message := link.receive()) is not None:
                self._events.put(("run", message))
            self._events.put(("run", None))
        except BadMessage as error:
            self._say(f"the run sent {messages.shown(str(error))[:300]}")
            self._events.put(("run", None))

    def _serve(self, link: Link[messages.AnyToNode]) -> int:
        ended = False
        while True:
            try:
                source, message = self._events.get(timeout=GOODBYE_S if ended else None)
            except queue.Empty:
                return 0
            if source == "signal":
                link.send(messages.Interrupted(signal=int(message)))
            elif source == "agent":
                self._from_agent(link, message)
            elif isinstance(message, messages.Refuse):
                raise UsageError(messages.shown(message.reason))
            elif message is None:
                if ended:
                    time.sleep(LEAVE_S)
                    return 0
                raise SimulatorError(f"the run at {self._run_host} is gone; node {self._number} ends")
            elif isinstance(message, messages.End):
                ended = True
                count = orphans.end(self._mark) if self._mark is not None else 0
                link.send(messages.Orphans(count=count))
            else:
                self._obey(link, message)

    def _from_agent(self, link: Link[messages.AnyToNode], message: dict[str, Any]) -> None:
        event = message["event"]
        if event == "ready":
            link.send(messages.Prepared())
        elif event == "gone":
            for process in self._planned:
                link.send(messages.Ended(name=process.name, status=-signal.SIGKILL))
            self._planned = []
        elif event == "failed":
            link.send(messages.Failed(reason=str(message.get("reason"))))
        elif event == "started":
            link.send(messages.Started(name=message["name"], pid=message["pid"]))
        elif event == "ended":
            self._planned = [process for process in self._planned if process.name != message["name"]]
            self._say(f"{message['name']} ended with status {message['status']}")
            link.send(messages.Ended(name=message["name"], status=message["status"]))

    def _obey(self, link: Link[messages.AnyToNode], message: messages.AnyToNode) -> None:
        try:
            if isinstance(message, messages.Prepare):
                self._prepare(link, message)
            elif isinstance(message, messages.Start) and self._agent is not None:
                for process in self._planned:
                    words = process.args if process.script is None else (process.script, *process.args)
                    self._say(f"{process.name}: {' '.join(words)}")
                self._agent.start(self._planned)
            elif isinstance(message, messages.Signal) and self._agent is not None:
                self._agent.signal(message.signal)
        except (PhantomError, OSError) as error:
            self._say(str(error))
            link.send(messages.Failed(reason=str(error)))

    def _prepare(self, link: Link[messages.AnyToNode], message: messages.Prepare) -> None:
        """Plans this node's processes, and starts the process that will fork them."""
        job, variables = message.job, dict(message.variables)
        out = Path(job.out)
        state = variables[environment.STATE]
        if not Path(state, message.mark).exists():
            raise UsageError(
                f"the results folder {out} of the run is not seen here; mount the same folder at the same "
                f"place on the simulator and on every node"
            )
        self._mark = f"{environment.STATE}={state}"
        host, _, port = variables[environment.SERVER].rpartition(":")
        if host in LOOPBACK:  # the run's own simulator, as the run reaches it
            variables[environment.SERVER] = f"{self._run_host}:{port}"
        variables["PHANTOM_ROOT"] = pth.root()
        command = parse(tuple(job.command), launch=job.launch)
        fork = prepare_interpreter(command, say=lambda text: link.send(messages.Said(text=text)))
        sized = Job(
            command=command,
            nodes=job.nodes,
            gpus_per_node=job.gpus_per_node,
            ranks_per_node=job.ranks_per_node,
        )
        self._planned = plan(
            sized,
            variables=variables,
            out=out,
            fork=fork,
            node=self._number,
            rendezvous=message.rendezvous,
            hosts_are_real=True,
        )
        log = out / f"launch-{self._number}.log"
        self._agent = Agent(events=self._events, log=log, preload=fork, cwd=Path.cwd())
        self._agent.environment(variables)

    def _end(self) -> None:
        if self._agent is not None:
            self._agent.close()
        if self._mark is not None:
            orphans.end(self._mark)
        if self._link is not None:
            self._link.close()


def own_number(given: int | None) -> int:
    """The node's number: `given`, else the digits at the end of the host's name (server-3 is 3).

    Raises UsageError where there are none.
    """
    if given is not None:
        return given
    host = socket.gethostname()
    digits = host[len(host.rstrip("0123456789")) :]
    if not digits:
        raise UsageError(f"--node is missing, and the host's name {host} does not end with a number")
    return int(digits)
