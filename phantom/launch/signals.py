"""Ctrl-C and its like as events of a run."""

from __future__ import annotations

import queue
import signal
import threading
from typing import Any

from phantom.launch.errors import PhantomError


class Interrupted(PhantomError):
    """The user interrupted the run before the job had started."""

    def __init__(self, number: int) -> None:
        super().__init__("interrupted before the job had started")
        self.status = 128 + number


class Signals:
    """SIGINT, SIGTERM and SIGHUP become events while the run lasts."""

    def __init__(self, events: queue.SimpleQueue[tuple[str, Any]], interrupted: threading.Event) -> None:
        self._events = events
        self._interrupted = interrupted
        self._previous: dict[int, Any] = {}
        self.first: int | None = None  # the first signal that came

    def __enter__(self) -> Signals:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            self._previous[number] = signal.signal(number, self._note)
        return self

    def _note(self, number: int, _: Any) -> None:
        self.first = self.first or number
        self._interrupted.set()
        self._events.put(("signal", number))

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
