"""Measures kernels on the device of this machine, in a process of its own, one at a time."""

from __future__ import annotations

import contextlib
import os
import selectors
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from phantom.kernels.measure.kernel_store import Measurement
from phantom.kernels.measure.local_device import LocalDevice
from phantom.kernels.measure.message_framing import read_message, write_message
from phantom.kernels.request.description import KernelDescription, encode_kernel

try:
    import fcntl
except ImportError:  # not on this platform: measurements of two simulators may then disturb each other
    fcntl = None  # type: ignore[assignment]

_START_TIMEOUT_S = 120.0


class MeasurementFailed(RuntimeError):
    """A kernel could not be measured; the text is the reason shown to the user."""


class Measurer:
    """Runs kernels on *device*.

    *budget_s* bounds the repetitions of one kernel, *timeout_s* one kernel altogether (then its process is
    ended),
    *limit_bytes* its memory (default: 60 % of what is free).  *lock_path* names a file that all simulators
    of this machine lock while they
    measure, so that they do not disturb each other.
    """

    def __init__(
        self,
        device: LocalDevice,
        *,
        budget_s: float = 0.2,
        timeout_s: float = 60.0,
        limit_bytes: int | None = None,
        lock_path: Path | None = None,
    ) -> None:
        self.device = device
        self._budget_s = budget_s
        self._timeout_s = timeout_s
        self._limit_bytes = limit_bytes
        self._lock_path = lock_path
        self._lock = threading.Lock()
        self._workers: list[_Worker] = []

    @contextlib.contextmanager
    def exclusive(self) -> Iterator[None]:
        """Hold the measuring right of this process, and of this machine if there is a lock file."""
        with self._lock, self._machine_lock():
            yield

    def measure(self, kernel: KernelDescription, key: str) -> Measurement:
        """Run *kernel* and return what was measured, to be stored under *key*; call it inside
        :meth:`exclusive`.

        Raises MeasurementFailed.
        """
        request = {
            "kernel": encode_kernel(kernel), "device": self.device.torch_name, "budget_s": self._budget_s,
            "limit_bytes": self._limit_bytes,
        }  # fmt: skip
        first, *others = self._ready()
        beside: list[_Worker] = []
        try:
            for other in others:
                self._good(other.ask({**request, "beside": True}, self._timeout_s))
                beside.append(other)
            answer = self._good(first.ask(request, self._timeout_s))
        finally:
            stopped = [other.ask({"stop": True}, self._timeout_s) for other in beside]
        for one in stopped:  # what ran alone for a part of the time does not count
            self._good(one)
        return Measurement(
            key=key, device=self.device.name, kind=self.device.kind, threads=self.device.threads,
            torch=self.device.torch, runtime=self.device.runtime, clock_hz=self.device.clock_hz,
            median_s=answer["median_s"], spread_s=answer["spread_s"],
            repetitions=answer["repetitions"], warmup=answer["warmup"],
            measured_at=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        )  # fmt: skip

    def close(self) -> None:
        """End the measuring processes."""
        workers, self._workers = self._workers, []
        for worker in workers:
            worker.close()

    def __enter__(self) -> Measurer:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    @contextlib.contextmanager
    def _machine_lock(self) -> Iterator[None]:
        if self._lock_path is None or fcntl is None:
            yield
            return
        self._lock_path.parent.mkdir(parents=True, exist_ok=True)
        with open(self._lock_path, "w", encoding="utf-8") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def _good(self, answer: dict[str, Any]) -> dict[str, Any]:
        if not answer["ok"]:
            raise MeasurementFailed(answer["reason"])
        return answer

    def _ready(self) -> list[_Worker]:
        """The process that measures, and those that run beside it."""
        if not all(worker.is_alive() for worker in self._workers):
            self.close()
        while len(self._workers) < self.device.processes:
            self._workers.append(_Worker(max(self.device.threads, 1)))
        return self._workers


class _Worker:
    """A measuring process; it is ended when it does not answer as it should."""

    def __init__(self, threads: int) -> None:
        environment = {k: v for k, v in os.environ.items() if not k.startswith("PHANTOM")}
        environment.update(OMP_NUM_THREADS=str(threads), MKL_NUM_THREADS=str(threads))
        root = str(Path(__file__).resolve().parents[3])
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, [root, environment.get("PYTHONPATH")]))
        self._process = subprocess.Popen(
            [sys.executable, "-m", "phantom.kernels.measure.measuring_worker", str(threads)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment,
        )  # fmt: skip
        started = self._answer(_START_TIMEOUT_S)
        if not started.get("ready"):
            self.close()
            raise MeasurementFailed(f"the measuring process did not start: {started.get('reason', started)}")

    def is_alive(self) -> bool:
        """Whether it can be asked."""
        return self._process.poll() is None

    def ask(self, request: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        """Send *request* and return the answer; ``ok`` is false, with a ``reason``, where there is none."""
        assert self._process.stdin is not None
        try:
            write_message(self._process.stdin, request)
        except (OSError, ValueError):  # ended, or closed by us
            self.close()
            return {"ok": False, "reason": "the measuring process ended"}
        return self._answer(timeout_s)

    def close(self) -> None:
        """End it."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()

    def _answer(self, timeout_s: float) -> dict[str, Any]:
        assert self._process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            if not selector.select(timeout_s):
                self.close()
                return {"ok": False, "reason": f"took longer than {timeout_s:g} s"}
        answer = read_message(self._process.stdout)
        if answer is None:
            status = self._process.wait()
            self.close()
            return {"ok": False, "reason": f"the measuring process ended with status {status}"}
        found: dict[str, Any] = answer
        return found
