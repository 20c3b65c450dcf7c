"""The simulator of this run as a child process, and the calls that `phantom run` makes to it."""

from __future__ import annotations

import contextlib
import os
import queue
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from netsim.outside import OutsideError, parse_json
from phantom.launch.errors import SimulatorError, UsageError
from phantom.launch.processes import is_stopped
from phantom.results.run_summary import Summary, summary_from
from phantom.wire import simulator_pb2 as protobuf
from phantom.wire import simulator_pb2_grpc as service
from phantom.wire import token as tokens
from phantom.wire.limits import CHANNEL_OPTIONS
from phantom.wire.messages import (
    CloseJob,
    JobOpened,
    Message,
    OpenJob,
    Progress,
    RankExited,
    Recording,
    text_of,
)
from phantom.wire.messages import parse as parse_message

START_TIMEOUT_S = 120.0
CALL_TIMEOUT_S = 120.0
HURRIED_S = 3.0
"""What a call may take once the user has interrupted."""

POLL_S = 0.05
TERM_S = 3.0
FOLDER = "PHANTOM_RUN_FOLDER"
"""Of a simulator that belongs to one run: the run's folder, the only place where it writes."""

LISTENING = "phantom simulator listening on "
"""First line that `phantom serve` prints, followed by host:port."""


_REFUSALS = (
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.UNAUTHENTICATED,
)


@dataclass(frozen=True)
class Gone:
    """The simulator's stream ended before the job was closed."""

    reason: str


class SimulatorProcess:
    """A `phantom serve` of our own, told where to listen by its arguments; it dies with this process.

    `folder`: where it may write. It and the token go by the environment, which other users cannot read.
    """

    def __init__(self, *, arguments: list[str], log: Path, root: str, token: str, folder: Path) -> None:
        self._log = log
        env = dict(os.environ)
        env["PHANTOM_PARENT"] = str(os.getpid())
        env[tokens.VARIABLE] = token
        env[FOLDER] = str(folder)
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
        """Ends it; one that is stopped cannot end itself."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(timeout=0.1 if is_stopped(self.process.pid) else TERM_S)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()


class SimulatorClient:
    """`phantom run`'s calls. What Watch tells arrives on `events` as ("simulator", Progress or Gone).

    `token` opens a job; the job's own, which the reply brings, does the rest. `hurried` says that the user
    has interrupted: calls then get HURRIED_S, also those that are under way.
    """

    def __init__(self, address: str, token: str, *, hurried: Callable[[], bool] = lambda: False) -> None:
        self._address = address
        self._token = token
        self._hurried = hurried
        self._closing = False
        self._told: list[Any] = []
        self._channel = grpc.insecure_channel(address, options=list(CHANNEL_OPTIONS))
        self._stub = service.SimulatorStub(self._channel)

    def wait_until_ready(self, timeout_s: float = 15.0) -> None:
        """Raises SimulatorError where nobody answers."""
        try:
            self._result(grpc.channel_ready_future(self._channel), timeout_s)
        except (grpc.FutureTimeoutError, TimeoutError):
            raise SimulatorError(
                f"no simulator answers at {self._address} (is `phantom serve` running there?)"
            ) from None

    def _result(self, future: Any, timeout_s: float) -> Any:
        """The future's result; a Ctrl-C shortens the wait. Raises TimeoutError and what the call raises."""
        deadline_s = time.monotonic() + timeout_s
        hurried = False
        while True:
            if not hurried and self._hurried():
                hurried = True
                deadline_s = min(deadline_s, time.monotonic() + HURRIED_S)
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                future.cancel()
                raise TimeoutError
            try:
                return future.result(timeout=min(POLL_S, left_s))
            except grpc.FutureTimeoutError:
                continue

    def _call(self, method: Any, message: Message) -> str:
        request = protobuf.JsonMessage(json=text_of(message))
        try:
            future = method.future(request, timeout=CALL_TIMEOUT_S, metadata=tokens.metadata(self._token))
            return str(self._result(future, CALL_TIMEOUT_S).json)
        except TimeoutError:
            raise SimulatorError(f"the simulator at {self._address} does not answer") from None
        except grpc.RpcError as error:
            details = error.details() or error.code().name
            if error.code() in _REFUSALS:
                raise UsageError(details) from None
            raise SimulatorError(f"the simulator at {self._address} failed: {details}") from None

    def open_job(self, job: OpenJob) -> JobOpened:
        """Announces the job; returns its token, the device's properties and the host model.

        Raises UsageError where the simulator refuses it, SimulatorError where it fails.
        """
        reply = self._call(self._stub.OpenJob, job)
        try:
            opened = parse_message(JobOpened, reply)
        except ValueError as error:
            raise SimulatorError(f"the simulator at {self._address} cannot be understood: {error}") from None
        self._token = opened.token
        return opened

    def close_job(self, end: CloseJob) -> Summary:
        """Ends the job; returns the summary. Raises SimulatorError."""
        self._closing = True
        deadline_s = time.monotonic() + HURRIED_S
        for told in self._told:
            if self._hurried():
                break
            with contextlib.suppress(grpc.RpcError, TimeoutError):
                self._result(told, max(deadline_s - time.monotonic(), 0.0))
        try:
            name = "the simulator's summary"
            return summary_from(parse_json(self._call(self._stub.CloseJob, end), name), name=name)
        except OutsideError as error:
            raise SimulatorError(str(error)) from None

    def fetch(self, name: str, file: Path) -> None:
        """Writes a file that the simulator keeps of a closed job. Raises SimulatorError, OSError."""
        file.parent.mkdir(parents=True, exist_ok=True)
        part = file.with_suffix(".part")
        request = protobuf.JsonMessage(json=text_of(Recording(file=name)))
        try:
            with open(part, "wb") as out:
                for chunk in self._stub.Recording(request, metadata=tokens.metadata(self._token)):
                    out.write(chunk.content)
        except grpc.RpcError as error:
            part.unlink(missing_ok=True)
            raise SimulatorError(error.details() or error.code().name) from None
        part.replace(file)

    def rank_exited(self, rank: int, status: int) -> None:
        """Tells that a rank's process has ended, without waiting; a dead simulator is noticed elsewhere."""
        request = protobuf.JsonMessage(json=text_of(RankExited(rank=rank, status=status)))
        self._told.append(
            self._stub.RankExited.future(
                request, timeout=CALL_TIMEOUT_S, metadata=tokens.metadata(self._token)
            )
        )

    def watch(self, events: queue.SimpleQueue[tuple[str, Any]]) -> None:
        """Starts to pass on what the simulator tells about the job.

        The stream lasts as long as the job: however it ends before close_job, the simulator is gone. A server
        that shuts down ends it in an orderly way or cancels it, with the same code as a call of our own.
        """

        def read() -> None:
            reason = "it shut down"
            request = protobuf.JsonMessage(json="{}")
            try:
                for message in self._stub.Watch(request, metadata=tokens.metadata(self._token)):
                    events.put(("simulator", parse_message(Progress, message.json)))
            except grpc.RpcError as error:
                reason = error.details() or error.code().name
            except ValueError as error:
                reason = f"it cannot be understood: {error}"
            if not self._closing:
                events.put(("simulator", Gone(reason)))

        threading.Thread(target=read, name="phantom-watch", daemon=True).start()

    def close(self) -> None:
        """Closes the channel."""
        self._closing = True
        self._channel.close()
