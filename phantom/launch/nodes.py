"""Simulated nodes that are machines or containers of their own, seen from the run: an Agent of many.

Each runs `phantom node` (node.py), connects here with the run's token and starts its share of the processes.
`node_messages.py` has what both say.
"""

from __future__ import annotations

import contextlib
import queue
import secrets
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from interpose import environment
from phantom.launch import node_messages as messages
from phantom.launch import orphans
from phantom.launch.errors import UsageError
from phantom.launch.link import BadMessage, Link
from phantom.launch.plan import PlannedProcess
from phantom.wire import token as tokens

JOIN_TIMEOUT_S = 120.0
HELLO_TIMEOUT_S = 10.0
END_TIMEOUT_S = 15.0


@dataclass
class _Node:
    """One node that has joined."""

    number: int
    host: str
    address: str
    port: int
    link: Link[messages.AnyFromNode]
    prepared: bool = False
    running: set[str] = field(default_factory=set)
    orphans: int | None = None


def split_address(text: str, option: str) -> tuple[str, int]:
    """HOST:PORT taken apart. Raises UsageError that names the option."""
    host, separator, port = text.rpartition(":")
    if not separator or not host or not port.isdigit() or int(port) > 65535:
        raise UsageError(f"{option} {text}: give HOST:PORT")
    return host.strip("[]"), int(port)


class NodeAgents:
    """Waits for `count` nodes and speaks to all of them as `phantom.launch.agent.Agent` does to one.

    `job` is what a node needs for its plan (node.py), `token` what it must present. What arrives is put on
    `events`: ("agent", message)
    and, if a node is told to stop from outside, ("signal", number) once. A node whose connection ends
    before the run does is {"event": "lost", "node", "host", "processes", "reason"}. Raises UsageError if it
    cannot listen.
    """

    def __init__(
        self,
        *,
        listen: str,
        count: int,
        job: messages.NodeJob,
        token: str,
        events: queue.SimpleQueue[tuple[str, Any]],
        say: Callable[[str], None],
        join_timeout_s: float = JOIN_TIMEOUT_S,
    ) -> None:
        host, port = split_address(listen, "--await-nodes")
        self._count = count
        self._job = job
        self._token = token
        self._events = events
        self._say = say
        self._join_timeout_s = join_timeout_s
        self._nodes: dict[int, _Node] = {}
        self._lock = threading.Lock()
        self._variables: dict[str, str] | None = None
        self._mark = f"token-{secrets.token_hex(8)}"
        self._told = False
        self._over = False
        self._interrupted = False
        self._ended = threading.Condition(self._lock)
        try:
            self._listener = socket.create_server((host, port), backlog=max(count, 16))
        except OSError as error:
            raise UsageError(f"--await-nodes {listen}: cannot listen there: {error.strerror}") from None
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, name="phantom-nodes", daemon=True).start()

    # Joining

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(
                target=self._serve, args=(Link(connection, messages.FROM_NODE),), daemon=True
            ).start()

    def _serve(self, link: Link[messages.AnyFromNode]) -> None:
        try:
            hello = link.receive(HELLO_TIMEOUT_S)
        except TimeoutError:
            hello = None
        except BadMessage as error:
            self._say(f"a node was refused: it sent {messages.shown(str(error))[:300]}")
            link.send(messages.Refuse(reason=f"the run cannot read its hello: {error}"))
            hello = None
        if not isinstance(hello, messages.Hello):
            link.close()  # a health check, or somebody else
            return
        node, refusal = self._join(hello, link)
        if node is None:
            link.send(messages.Refuse(reason=refusal))
            link.close()
            return
        self._say(f"{node.host} joined as node {node.number}")
        self._prepare_all()
        reason = "its connection ended"
        try:
            while (message := link.receive()) is not None:
                self._handle(node, message)
        except BadMessage as error:
            reason = f"it sent {messages.shown(str(error))[:300]}"
            link.close()
        self._lost(node, reason)

    def _join(self, hello: messages.Hello, link: Link[messages.AnyFromNode]) -> tuple[_Node | None, str]:
        if hello.protocol != messages.PROTOCOL:
            text = f"the run speaks protocol {messages.PROTOCOL}, this node {hello.protocol}: same phantom?"
            return None, text
        if not tokens.same(hello.token, self._token):
            self._say(f"{hello.host} was refused as node {hello.node}: it does not know the run's token")
            return None, f"the run's token is missing or another one; give it in {tokens.VARIABLE}"
        if hello.node >= self._count:
            text = f"the job has nodes 0 to {self._count - 1} (-N), this one says it is node {hello.node}"
            return None, text
        with self._lock:
            if hello.node in self._nodes:
                return None, f"{self._nodes[hello.node].host} is node {hello.node} already"
            node = _Node(hello.node, hello.host, hello.address, hello.port, link)
            self._nodes[hello.node] = node
        return node, ""

    def environment(self, variables: Mapping[str, str]) -> None:
        """Tells the nodes what to plan with as soon as all are here; "ready" or "failed" follows."""
        state = Path(variables[environment.STATE])
        (state / self._mark).touch()
        self._variables = dict(variables)
        self._prepare_all()
        timer = threading.Timer(self._join_timeout_s, self._check_joined)
        timer.daemon = True
        timer.start()

    def _check_joined(self) -> None:
        missing = [number for number in range(self._count) if number not in self._nodes]
        if missing and not self._over:
            names = ", ".join(str(number) for number in missing)
            self._fail(
                f"no server joined as node {names} within {self._join_timeout_s:g} s; is `phantom node "
                f"--join` running there, and can it reach this machine?"
            )

    def _prepare_all(self) -> None:
        with self._lock:
            if self._told or self._variables is None or len(self._nodes) < self._count:
                return
            self._told = True
            first = self._nodes[0]
            nodes, variables = list(self._nodes.values()), self._variables
        prepare = messages.Prepare(
            job=self._job,
            variables=variables,
            rendezvous=(first.address, first.port),
            mark=self._mark,
        )
        for node in nodes:
            node.link.send(prepare)

    # What nodes tell

    def _handle(self, node: _Node, message: messages.AnyFromNode) -> None:
        if isinstance(message, messages.Prepared):
            node.prepared = True
            if all(other.prepared for other in self._nodes.values()):
                self._events.put(("agent", {"event": "ready"}))
        elif isinstance(message, messages.Failed):
            self._fail(f"{node.host}: {messages.shown(message.reason)}")
        elif isinstance(message, messages.Said):
            self._say(f"{node.host}: {messages.shown(message.text)}")
        elif isinstance(message, messages.Interrupted):
            # Whoever stops the servers stops all of them; that is one interrupt.
            if not self._interrupted:
                self._interrupted = True
                self._events.put(("signal", message.signal))
        elif isinstance(message, messages.Orphans):
            with self._ended:
                node.orphans = message.count
                self._ended.notify_all()
        elif isinstance(message, messages.Ended):
            node.running.discard(message.name)
            self._events.put(("agent", {"event": "ended", "name": message.name, "status": message.status}))

    def _fail(self, reason: str) -> None:
        self._events.put(("agent", {"event": "failed", "reason": reason}))

    def _lost(self, node: _Node, reason: str) -> None:
        with self._ended:
            over = self._over or node.orphans is not None
            if node.orphans is None:
                node.orphans = 0
            self._ended.notify_all()
        if over:
            return
        text = f"{node.host} (node {node.number}) is lost: {reason}"
        if not node.prepared:
            self._fail(text)
            return
        # At once: who watches the containers stops showing what they print as soon as it stops them.
        sys.stderr.write(f"phantom: {text}\n")
        sys.stderr.flush()
        self._events.put(("agent", {"event": "lost", "node": node.number, "host": node.host,
                                    "processes": sorted(node.running), "reason": text}))  # fmt: skip

    # The Agent's side

    def start(self, processes: Sequence[PlannedProcess]) -> None:
        """Lets every node start what it planned; `processes` are the run's own plan of the same."""
        for node in self._nodes.values():
            node.running = {process.name for process in processes if process.node == node.number}
        for node in self._nodes.values():
            node.link.send(messages.Start())

    def signal(self, number: int) -> None:
        """Sends a signal to the process groups of all that run."""
        for node in list(self._nodes.values()):
            node.link.send(messages.Signal(signal=int(number)))

    def is_stopped(self) -> bool:
        """False: what a node does is its own machine's."""
        return False

    def kill(self) -> None:
        """Breaks the connections, on which every node ends what it runs."""
        for node in list(self._nodes.values()):
            node.link.close()

    def log_tail(self) -> str:
        """Nothing: a node that fails says why."""
        return ""

    def end_orphans(self, mark: str) -> int:
        """Lets every node end what its share of the job left running; returns how many there were in all."""
        for node in list(self._nodes.values()):
            node.link.send(messages.End())
        deadline_s = time.monotonic() + END_TIMEOUT_S
        with self._ended:
            while any(node.orphans is None for node in self._nodes.values()):
                if not self._ended.wait(max(deadline_s - time.monotonic(), 0)):
                    break
            return orphans.end(mark) + sum(node.orphans or 0 for node in self._nodes.values())

    def close(self) -> None:
        """No more nodes; those that are here end what they still run.

        The connections stay open until this process ends: a node leaves when they break, and whoever
        watches the containers should see the run end first.
        """
        self._over = True
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for node in list(self._nodes.values()):
            node.link.send(messages.End())
