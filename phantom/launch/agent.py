"""`phantom run`'s side of the fork server (interpose/fork/server.py)."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from interpose.startup import pth
from phantom.launch import orphans
from phantom.launch.plan import PlannedProcess
from phantom.launch.processes import is_stopped

PRELOAD = (
    "torch.distributed",
    "torch.distributed.fsdp",
    "torch.distributed.tensor.parallel",
    "torch.distributed.pipelining",
    "torch.distributed.checkpoint",
    "torch.nn.parallel",
    "torch.optim",
    "torch.utils.data",
    "torch._dynamo",
    "grpc",
    "phantom.wire.simulator_pb2_grpc",
    "msgpack",
)
"""Modules that nearly every rank imports by itself sooner or later; importing them once saves seconds per
rank."""

END_S = 5.0

# The hook makes `interpose` importable; `-c` puts the working folder on the path, where a script could hide
# modules.
_BOOTSTRAP = """
import sys
if sys.path and sys.path[0] == "": del sys.path[0]
exec({hook!r}, {{"__name__": "_phantom_hook", "__file__": "<phantom>"}})
from interpose.fork.server import serve
serve({descriptor}, {parent})
"""


class Agent:
    """The fork server as a child of this process. Events arrive on `events` as ("agent", message)."""

    def __init__(
        self, *, events: queue.SimpleQueue[tuple[str, Any]], log: Path, preload: bool, cwd: Path
    ) -> None:
        self._events = events
        self._preload = preload
        self._cwd = cwd
        self._connection, theirs = socket.socketpair()
        descriptor = theirs.fileno()
        code = _BOOTSTRAP.format(hook=pth.hook_text(), descriptor=descriptor, parent=os.getpid())
        env = {name: value for name, value in os.environ.items() if not name.startswith("PHANTOM")}
        env |= {"PHANTOM": "1", "PHANTOM_ROOT": pth.root(), "GRPC_ENABLE_FORK_SUPPORT": "0"}
        env.setdefault("OMP_NUM_THREADS", "1")
        self._log = log
        with open(log, "ab") as out:
            # Its own session: a Ctrl-C of the terminal reaches phantom run only, which ends the job in order.
            self.process = subprocess.Popen(
                [sys.executable, "-c", code], stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=env,
                cwd=cwd, pass_fds=(descriptor,), start_new_session=True,
            )  # fmt: skip
        theirs.close()
        self._send({"do": "preload", "modules": list(PRELOAD)} if preload else {"do": "serve"})
        self._reader = threading.Thread(target=self._read, name="phantom-agent", daemon=True)
        self._reader.start()

    def _send(self, message: dict[str, Any]) -> None:
        try:
            self._connection.sendall(json.dumps(message).encode() + b"\n")
        except OSError:
            return  # its end is an event of its own

    def _read(self) -> None:
        buffer = b""
        while True:
            try:
                chunk = self._connection.recv(1 << 16)
            except OSError:
                chunk = b""
            if not chunk:
                self._events.put(("agent", {"event": "gone", "reason": self._how_it_ended()}))
                return
            buffer += chunk
            *lines, buffer = buffer.split(b"\n")
            for line in lines:
                self._events.put(("agent", json.loads(line)))

    def _how_it_ended(self) -> str:
        try:
            status = self.process.wait(timeout=1.0)
        except subprocess.TimeoutExpired:
            return "it closed its connection"
        if status >= 0:
            return f"status {status}"
        try:
            return f"killed by {signal.Signals(-status).name}"
        except ValueError:
            return f"killed by signal {-status}"

    def is_stopped(self) -> bool:
        """Whether the server was stopped (SIGSTOP), so that it does nothing that it is asked."""
        return is_stopped(self.process.pid)

    def kill(self) -> None:
        """Ends the server by force; what it started dies with it."""
        self.process.kill()

    def environment(self, variables: Mapping[str, str]) -> None:
        """Tells a preloading server what the virtual device looks like."""
        if self._preload:
            self._send({"do": "environment", "variables": dict(variables)})

    def start(self, processes: Sequence[PlannedProcess]) -> None:
        """Starts processes; "started" and "ended" events follow."""
        self._send({"do": "start", "processes": [process.message(self._cwd) for process in processes]})

    def signal(self, number: int) -> None:
        """Sends a signal to the process groups of all that run."""
        self._send({"do": "signal", "signal": int(number)})

    def log_tail(self) -> str:
        """The last lines of what the server itself printed."""
        try:
            return "".join(self._log.read_text(errors="replace").splitlines(keepends=True)[-15:])
        except OSError:
            return ""

    def end_orphans(self, mark: str) -> int:
        """Ends what the job left running, `mark` being in its environment; returns how many there were."""
        return orphans.end(mark)

    def close(self) -> None:
        """Ends the server, which kills what is left of the job."""
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        try:
            self.process.wait(timeout=0.1 if self.is_stopped() else END_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._connection.close()
