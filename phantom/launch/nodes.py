"""Simulated nodes that are machines or containers of their own, seen from the run: an Agent of many.

Each runs `phantom node` (node.py), connects here and starts its share of the processes. Messages to a node:
{"do": "prepare", "job", "variables", "rendezvous", "token"}, {"do": "start"}, {"do": "signal", "signal"},
{"do": "end"}, {"do": "refuse", "reason"}. From a node: {"event": "hello", ...} first, then "prepared",
"failed", "said", "interrupted", "orphans", and the agent's "started" and "ended".
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
from phantom.launch import orphans
from phantom.launch.errors import UsageError
from phantom.launch.link import BadMessage, Link
from phantom.launch.plan import PlannedProcess

PROTOCOL = 1
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
    link: Link
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

    `job` is what a node needs for its plan (node.py). What arrives is put on `events`: ("agent", message)
    and, if a node is told to stop from outside, ("signal", number) once. A node whose connection ends
    before the run does is {"event": "lost", "node", "host", "processes", "reason"}. Raises UsageError if it
    cannot listen.
    """

    def __init__(
        self,
        *,
        listen: str,
        count: int,
        job: Mapping[str, Any],
        events: queue.SimpleQueue[tuple[str, Any]],
        say: Callable[[str], None],
        join_timeout_s: float = JOIN_TIMEOUT_S,
    ) -> None:
        host, port = split_address(listen, "--await-nodes")
        self._count = count
        self._job = dict(job)
        self._events = events
        self._say = say
        self._join_timeout_s = join_timeout_s
        self._nodes: dict[int, _Node] = {}
        self._lock = threading.Lock()
        self._variables: dict[str, str] | None = None
        self._token = secrets.token_hex(8)
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
            threading.Thread(target=self._serve, args=(Link(connection),), daemon=True).start()

    def _serve(self, link: Link) -> None:
        try:
            hello = link.receive(HELLO_TIMEOUT_S)
        except (BadMessage, TimeoutError):
            hello = None
        if hello is None or hello.get("event") != "hello":
            link.close()  # a health check, or somebody else
            return
        node, refusal = self._join(hello, link)
        if node is None:
            link.send({"do": "refuse", "reason": refusal})
            link.close()
            return
        self._say(f"{node.host} joined as node {node.number}")
        self._prepare_all()
        reason = "its connection ended"
        try:
            while (message := link.receive()) is not None:
                self._handle(node, message)
        except BadMessage as error:
            reason = f"it sent {error}"
        self._lost(node, reason)

    def _join(self, hello: Mapping[str, Any], link: Link) -> tuple[_Node | None, str]:
        number, host = hello.get("node"), str(hello.get("host", "?"))
        if hello.get("protocol") != PROTOCOL:
            return (
                None,
                f"the run speaks protocol {PROTOCOL}, this node {hello.get('protocol')}: same phantom?",
            )
        if not isinstance(number, int) or not 0 <= number < self._count:
            return None, f"the job has nodes 0 to {self._count - 1} (-N), this one says it is node {number}"
        with self._lock:
            if number in self._nodes:
                return None, f"{self._nodes[number].host} is node {number} already"
            node = _Node(number, host, str(hello["address"]), int(hello["port"]), link)
            self._nodes[number] = node
        return node, ""

    def environment(self, variables: Mapping[str, str]) -> None:
        """Tells the nodes what to plan with as soon as all are here; "ready" or "failed" follows."""
        state = Path(variables[environment.STATE])
        (state / f"token-{self._token}").touch()
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
        rendezvous = [first.address, first.port]
        for node in nodes:
            node.link.send({"do": "prepare", "job": self._job, "variables": variables,
                            "rendezvous": rendezvous, "token": self._token})  # fmt: skip

    # What nodes tell

    def _handle(self, node: _Node, message: dict[str, Any]) -> None:
        event = message.get("event")
        if event == "prepared":
            node.prepared = True
            if all(other.prepared for other in self._nodes.values()):
                self._events.put(("agent", {"event": "ready"}))
        elif event == "failed":
            self._fail(f"{node.host}: {message.get('reason')}")
        elif event == "said":
            self._say(f"{node.host}: {message.get('text')}")
        elif event == "interrupted":
            # Whoever stops the servers stops all of them; that is one interrupt.
            if not self._interrupted:
                self._interrupted = True
                self._events.put(("signal", int(message["signal"])))
        elif event == "orphans":
            with self._ended:
                node.orphans = int(message["count"])
                self._ended.notify_all()
        elif event in ("started", "ended"):
            if event == "ended":
                node.running.discard(str(message["name"]))
            self._events.put(("agent", message))

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
            node.link.send({"do": "start"})

    def signal(self, number: int) -> None:
        """Sends a signal to the process groups of all that run."""
        for node in list(self._nodes.values()):
            node.link.send({"do": "signal", "signal": int(number)})

    def log_tail(self) -> str:
        """Nothing: a node that fails says why."""
        return ""

    def end_orphans(self, mark: str) -> int:
        """Lets every node end what its share of the job left running; returns how many there were in all."""
        for node in list(self._nodes.values()):
            node.link.send({"do": "end"})
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
            node.link.send({"do": "end"})
