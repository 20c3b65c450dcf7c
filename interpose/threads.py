"""A Python thread starts at its creator's virtual time, and who joins it goes on no earlier than its end."""

from __future__ import annotations

import itertools
import os
import threading
from types import ModuleType
from typing import Any

_HANDOVER = "_phantom_handover"
_numbers = itertools.count()
_extension: ModuleType | None = None


class Handover:
    """What a thread takes over from its creator and leaves to who joins it.

    While it is joined the joiner's clock counts as infinitely late, and the thread's own clock holds the
    horizon instead, from `start_ps` on, even before it has issued anything.
    """

    def __init__(self, start_ps: int) -> None:
        self.start_ps = start_ps
        self.end_ps: int | None = None
        self.ended = False
        self.lock = threading.Lock()
        self.key = f"phantom/thread/{os.environ.get('RANK', '0')}/{os.getpid()}/{next(_numbers)}"


def install(extension: ModuleType) -> None:
    """Wraps threading.Thread.start, join and the code around run; once per process."""
    global _extension
    if _extension is not None:
        return
    _extension = extension
    thread_class: Any = threading.Thread
    start, join, bootstrap = thread_class.start, thread_class.join, thread_class._bootstrap_inner

    def phantom_start(self: Any) -> None:
        if _has_clock(extension):
            setattr(self, _HANDOVER, Handover(int(extension.clock_now_ps())))
        start(self)

    def phantom_bootstrap_inner(self: Any) -> None:
        handover = getattr(self, _HANDOVER, None)
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
                    if _has_clock(extension):
                        handover.end_ps = int(extension.clock_now_ps())
                        extension.thread_ends(handover.key)
                self.__dict__.pop("run", None)

        self.run = run_and_note_the_end
        bootstrap(self)

    def phantom_join(self: Any, timeout: float | None = None) -> None:
        handover = getattr(self, _HANDOVER, None)
        if handover is None or not _has_clock(extension):
            join(self, timeout)
            return
        request = None
        if timeout is None:
            with handover.lock:
                if not handover.ended and self.ident is not None:
                    extension.clock_reserve(self.ident, handover.start_ps)
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


def _has_clock(extension: ModuleType) -> bool:
    from interpose import session

    return session.is_open() and bool(extension.has_clock())
