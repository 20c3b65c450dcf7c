"""The simulator of this run as a child process, and the calls that `phantom run` makes to it."""

from __future__ import annotations

import json
import os
import queue
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import grpc

from netsim.outside import OutsideError
from phantom.launch.errors import SimulatorError, UsageError
from phantom.results.run_summary import Summary, summary_from
from phantom.wire import simulator_pb2 as messages
from phantom.wire import simulator_pb2_grpc as service

MESSAGE_LIMIT_BYTES = 64 << 20
START_TIMEOUT_S = 120.0
CALL_TIMEOUT_S = 120.0
LISTENING = "phantom simulator listening on "
"""First line that `phantom serve` prints, followed by host:port."""


class SimulatorProcess:
    """A `phantom serve` of our own, told where to listen by its arguments; it dies with this process."""

    def __init__(self, *, arguments: list[str], log: Path, root: str) -> None:
        self._log = log
        env = dict(os.environ)
        env["PHANTOM_PARENT"] = str(os.getpid())
        env["PYTHONPATH"] = os.pathsep.join(part for part in (env.get("PYTHONPATH"), root) if part)
        with open(log, "ab") as err:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "phantom.cli.main", "serve", *arguments],
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=err, env=env, start_new_session=True,
            )  # fmt: skip

    def address(self) -> str:
        """Waits until the simulator listens and returns host:port.

        Raises UsageError where it refused its configuration, SimulatorError where it did not come up.
        """
        assert self.process.stdout is not None
        deadline = time.monotonic() + START_TIMEOUT_S
        text = b""
        while b"\n" not in text:
            left = deadline - time.monotonic()
            ready, _, _ = select.select([self.process.stdout], [], [], max(left, 0))
            if not ready:
                raise SimulatorError(
                    f"the simulator did not start within {START_TIMEOUT_S:.0f} s:\n{self.log_tail()}"
                )
            chunk = os.read(self.process.stdout.fileno(), 4096)
            if not chunk:
                status = self.process.wait()
                error = UsageError if status == 2 else SimulatorError
                raise error(
                    self.log_tail().strip() or f"the simulator ended with status {status} before it listened"
                )
            text += chunk
        line = text.decode().splitlines()[0]
        if not line.startswith(LISTENING):
            raise SimulatorError(f"the simulator said {line!r} instead of its address")
        return line.removeprefix(LISTENING).strip()

    def log_tail(self) -> str:
        """The last lines of what the simulator printed."""
        try:
            return "\n".join(self._log.read_text(errors="replace").splitlines()[-15:])
        except OSError:
            return ""

    def poll(self) -> int | None:
        """Its exit status, None while it runs."""
        return self.process.poll()

    def close(self) -> None:
        """Ends it."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(timeout=5)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()


class SimulatorClient:
    """`phantom run`'s calls. What Watch tells arrives on `events` as ("simulator", message)."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._closing = False
        options = [
            ("grpc.max_send_message_length", MESSAGE_LIMIT_BYTES),
            ("grpc.max_receive_message_length", MESSAGE_LIMIT_BYTES),
            ("grpc.enable_http_proxy", 0),
        ]
        self._channel = grpc.insecure_channel(address, options=options)
        self._stub = service.SimulatorStub(self._channel)

    def wait_until_ready(self, timeout_s: float = 15.0) -> None:
        """Raises SimulatorError where nobody answers."""
        try:
            grpc.channel_ready_future(self._channel).result(timeout=timeout_s)
        except grpc.FutureTimeoutError:
            raise SimulatorError(
                f"no simulator answers at {self._address} (is `phantom serve` running there?)"
            ) from None

    def _call(self, method: Any, message: Mapping[str, Any]) -> dict[str, Any]:
        try:
            reply = method(messages.JsonMessage(json=json.dumps(message)), timeout=CALL_TIMEOUT_S)
        except grpc.RpcError as error:
            details = error.details() or error.code().name
            if error.code() in (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.FAILED_PRECONDITION):
                raise UsageError(details) from None
            raise SimulatorError(f"the simulator at {self._address} failed: {details}") from None
        return dict(json.loads(reply.json)) if reply.json else {}

    def open_job(self, job: Mapping[str, Any]) -> dict[str, Any]:
        """Announces the job; returns the device's properties and the host model.

        Raises UsageError where the simulator refuses it, SimulatorError where it fails.
        """
        return self._call(self._stub.OpenJob, job)

    def close_job(self, end: Mapping[str, Any]) -> Summary:
        """Ends the job; returns the summary. Raises SimulatorError."""
        self._closing = True
        try:
            return summary_from(self._call(self._stub.CloseJob, end), name="the simulator's summary")
        except OutsideError as error:
            raise SimulatorError(str(error)) from None

    def fetch_recording(self, key: str, file: Path) -> None:
        """Writes the simulator's record of a closed job's collectives to `file`. Raises SimulatorError,
        OSError.
        """
        file.parent.mkdir(parents=True, exist_ok=True)
        part = file.with_suffix(".part")
        try:
            with open(part, "wb") as out:
                for chunk in self._stub.Recording(messages.JsonMessage(json=json.dumps({"recording": key}))):
                    out.write(chunk.content)
        except grpc.RpcError as error:
            part.unlink(missing_ok=True)
            raise SimulatorError(error.details() or error.code().name) from None
        part.replace(file)

    def rank_exited(self, rank: int, status: int) -> None:
        """Tells that a rank's process has ended; a simulator that is gone is noticed elsewhere."""
        try:
            self._call(self._stub.RankExited, {"rank": rank, "status": status})
        except (SimulatorError, UsageError):
            return

    def watch(self, events: queue.SimpleQueue[tuple[str, Any]]) -> None:
        """Starts to pass on what the simulator tells about the job.

        The stream lasts as long as the job: however it ends before close_job, the simulator is gone. A server
        that shuts down ends it in an orderly way or cancels it, with the same code as a call of our own.
        """

        def read() -> None:
            reason = "it shut down"
            try:
                for message in self._stub.Watch(messages.JsonMessage(json="{}")):
                    events.put(("simulator", json.loads(message.json)))
            except grpc.RpcError as error:
                reason = error.details() or error.code().name
            if not self._closing:
                events.put(("simulator", {"gone": reason}))

        threading.Thread(target=read, name="phantom-watch", daemon=True).start()

    def close(self) -> None:
        """Closes the channel."""
        self._closing = True
        self._channel.close()
