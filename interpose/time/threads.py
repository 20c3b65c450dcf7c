"""A Python thread starts at its creator's virtual time, and who joins it goes on no earlier than its end.

From its start on a thread holds the commit horizon at its creator's time, since it may be about to use the
device: else what the simulator has settled by the time of its first record would depend on the host's load.
Most threads never use it and wait for something real; one that is seen asleep, or that computes for long,
no longer holds anything.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
import time
from collections.abc import Callable
from typing import Any

from interpose.extension_protocol import Extension
from interpose.time import session
from phantom.wire.limits import THREAD_KEY

HANDOVER = "_phantom_handover"
POLL_S = 0.01
BUSY_S = 0.8
"""A thread that has computed for so long without using the device is no longer waited for."""
POLLS_ASLEEP = 3
"""A thread that waits for the interpreter's lock wakes every 5 ms (sys.getswitchinterval), so that one that
has not run at all for some polls is waiting for something else."""

_numbers = itertools.count()
_extension: Extension | None = None


class Handover:
    """What a thread takes over from its creator and leaves to who joins it.

    While it is joined the joiner's clock counts as infinitely late and the thread's own clock holds the
    horizon instead, from `start_ps` on even before it has issued anything.
    """

    def __init__(self, start_ps: int) -> None:
        self.start_ps = start_ps
        self.end_ps: int | None = None
        self.reserved = False
        self.let_go = False
        self.joined = False
        self.awaited = False
        """Somebody waits for the work item that this pool's thread runs (interpose/time/futures.py)."""
        self.ended = False
        self.lock = threading.Lock()
        self.key = f"{THREAD_KEY}{os.environ.get('RANK', '0')}/{os.getpid()}/{next(_numbers)}"


class Sleepers:
    """Takes clocks back from threads that have used none and sleep, or compute for long (monitors that spin).

    Has a thread of its own while there are any.
    """

    def __init__(self, extension: Extension, start: Callable[[threading.Thread], None]) -> None:
        self._extension = extension
        self._start = start
        self._watched: list[list[Any]] = []  # thread, handover, last seen, times seen like this, deadline
        self._running = False
        self._lock = threading.Lock()

    def watch(self, thread: threading.Thread, handover: Handover) -> None:
        """Looks at the thread until it uses its clock, ends, is joined, or its clock has been taken back."""
        with self._lock:
            self._watched.append([thread, handover, None, 0, time.monotonic() + BUSY_S])
            if not self._running:
                self._running = True
                self._start(threading.Thread(target=self._run, name="phantom-threads", daemon=True))

    def _run(self) -> None:
        pause = threading.Event()
        while True:
            pause.wait(POLL_S)
            with self._lock:
                self._watched = [entry for entry in self._watched if self._keep(entry)]
                if not self._watched:
                    self._running = False
                    return

    def _keep(self, entry: list[Any]) -> bool:
        thread, handover, seen, times, deadline_s = entry
        with handover.lock:
            if handover.ended or handover.joined or handover.awaited:
                return False
            now = asleep(thread.native_id)
            entry[2], entry[3] = now, times + 1 if now is not None and now == seen else 0
            sleeps = entry[3] >= POLLS_ASLEEP
            if not sleeps and time.monotonic() < deadline_s:
                return True
            if self._extension.clock_release(thread.ident):
                handover.reserved = False
                handover.let_go = not sleeps
            return False


def asleep(native_id: int | None) -> tuple[str, ...] | None:
    """How often a sleeping thread of this process has been switched out so far; None if it is not asleep.

    Equal answers mean that it has not run in between (Linux, proc(5): /proc/PID/task/TID/status).
    """
    try:
        with open(f"/proc/self/task/{native_id}/status") as file:
            lines = dict(line.split(":", 1) for line in file if ":" in line)
    except OSError:
        return None
    if not lines.get("State", "").strip().startswith("S"):
        return None
    return tuple(lines[name].strip() for name in ("voluntary_ctxt_switches", "nonvoluntary_ctxt_switches"))


def install(extension: Extension) -> None:
    """Wraps threading.Thread.start, join and the code around run; once per process."""
    global _extension
    if _extension is not None:
        return
    _extension = extension
    thread_class: Any = threading.Thread
    start, join, bootstrap = thread_class.start, thread_class.join, thread_class._bootstrap_inner
    sleepers = Sleepers(extension, start)

    def phantom_start(self: Any) -> None:
        if not _has_clock(extension):
            start(self)
            return
        handover = Handover(int(extension.clock_now_ps()))
        setattr(self, HANDOVER, handover)
        start(self)
        with handover.lock:
            if handover.ended:
                return
            extension.clock_reserve(self.ident, handover.start_ps)
            handover.reserved = True
        sleepers.watch(self, handover)

    def phantom_bootstrap_inner(self: Any) -> None:
        handover = getattr(self, HANDOVER, None)
        if handover is None:
            bootstrap(self)
            return
        extension.clock_inherit(handover.start_ps)
        run = self.run

        def run_and_note_the_end() -> None:
            try:
                run()
            finally:
                # Inside run, not after bootstrap: a joiner may go on as soon as bootstrap marks the thread as
                # ended.
                with handover.lock:
                    handover.ended = True
                    used = _has_clock(extension)
                    if used and handover.let_go:
                        extension.warn(
                            f"thread {self.name} first used the device after computing for over {BUSY_S} s; "
                            f"results may depend on host load"
                        )
                    if used:
                        handover.end_ps = int(extension.clock_now_ps())
                    if used or handover.joined:
                        extension.thread_ends(handover.key)
                    elif handover.reserved:
                        extension.clock_release(self.ident)
                with contextlib.suppress(AttributeError):
                    del self.__dict__["run"]

        self.run = run_and_note_the_end
        bootstrap(self)

    def phantom_join(self: Any, timeout: float | None = None) -> None:
        handover = getattr(self, HANDOVER, None)
        if handover is None or not _has_clock(extension):
            join(self, timeout)
            return
        request = None
        if timeout is None:
            with handover.lock:
                if not handover.ended and self.ident is not None:
                    # One that was seen asleep can be woken by the joiner at the earliest.
                    at_ps = handover.start_ps if handover.reserved else int(extension.clock_now_ps())
                    extension.clock_reserve(self.ident, at_ps)
                    handover.reserved = handover.joined = True
                    request = extension.join_begin(handover.key)
        try:
            join(self, timeout)
        finally:
            if request is not None:
                extension.wait_end(request)
        if handover.end_ps is not None and not self.is_alive():
            extension.clock_merge(handover.end_ps)

    thread_class.start = phantom_start
    thread_class.join = phantom_join
    thread_class._bootstrap_inner = phantom_bootstrap_inner


def _has_clock(extension: Extension) -> bool:
    return session.is_open() and bool(extension.has_clock())
