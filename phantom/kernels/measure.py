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

from phantom.kernels.description import KernelDescription, encode_kernel
from phantom.kernels.device import LocalDevice
from phantom.kernels.framing import read_message, write_message
from phantom.kernels.store import Measurement

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
        self._process: subprocess.Popen[bytes] | None = None

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
        answer = self._ask(request)
        if not answer["ok"]:
            raise MeasurementFailed(answer["reason"])
        return Measurement(
            key=key, device=self.device.name, kind=self.device.kind, threads=self.device.threads,
            torch=self.device.torch, runtime=self.device.runtime, clock_hz=self.device.clock_hz,
            median_s=answer["median_s"], spread_s=answer["spread_s"],
            repetitions=answer["repetitions"], warmup=answer["warmup"],
            measured_at=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        )  # fmt: skip

    def close(self) -> None:
        """End the measuring process."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()

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

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        process = self._worker()
        assert process.stdin is not None
        try:
            write_message(process.stdin, request)
        except OSError:
            self.close()
            return {"ok": False, "reason": "the measuring process ended"}
        return self._answer(process, self._timeout_s)

    def _answer(self, process: subprocess.Popen[bytes], timeout_s: float) -> dict[str, Any]:
        assert process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            if not selector.select(timeout_s):
                self.close()
                return {"ok": False, "reason": f"took longer than {timeout_s:g} s"}
        answer = read_message(process.stdout)
        if answer is None:
            status = process.wait()
            self.close()
            return {"ok": False, "reason": f"the measuring process ended with status {status}"}
        found: dict[str, Any] = answer
        return found

    def _worker(self) -> subprocess.Popen[bytes]:
        if self._process is not None and self._process.poll() is None:
            return self._process
        self.close()
        threads = max(self.device.threads, 1)
        environment = {k: v for k, v in os.environ.items() if not k.startswith("PHANTOM")}
        environment.update(OMP_NUM_THREADS=str(threads), MKL_NUM_THREADS=str(threads))
        root = str(Path(__file__).resolve().parents[2])
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, [root, environment.get("PYTHONPATH")]))
        self._process = subprocess.Popen(
            [sys.executable, "-m", "phantom.kernels.worker", str(threads)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment,
        )  # fmt: skip
        started = self._answer(self._process, _START_TIMEOUT_S)
        if not started.get("ready"):
            self.close()
            raise MeasurementFailed(f"the measuring process did not start: {started.get('reason', started)}")
        return self._process
