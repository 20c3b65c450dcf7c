"""A Python thread starts at its creator's virtual time, and who joins it goes on no earlier than its end."""

from __future__ import annotations

import threading
from types import ModuleType
from typing import Any

_START = "_phantom_start_ps"
_END = "_phantom_end_ps"
_extension: ModuleType | None = None


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
            setattr(self, _START, int(extension.clock_now_ps()))
        start(self)

    def phantom_bootstrap_inner(self: Any) -> None:
        start_ps = getattr(self, _START, None)
        if start_ps is None:
            bootstrap(self)
            return
        extension.clock_inherit(start_ps)
        run = self.run

        def run_and_note_the_end() -> None:
            try:
                run()
            finally:
                # Inside run, not after bootstrap: a joiner may go on as soon as bootstrap marks the thread as
                # ended.
                if _has_clock(extension):
                    setattr(self, _END, int(extension.clock_now_ps()))
                end = getattr(extension, "clock_end", None)
                if end is not None:
                    end()
                self.__dict__.pop("run", None)

        self.run = run_and_note_the_end
        bootstrap(self)

    def phantom_join(self: Any, timeout: float | None = None) -> None:
        join(self, timeout)
        end_ps = getattr(self, _END, None)
        if end_ps is not None and not self.is_alive() and _has_clock(extension):
            extension.clock_merge(end_ps)

    thread_class.start = phantom_start
    thread_class.join = phantom_join
    thread_class._bootstrap_inner = phantom_bootstrap_inner


def _has_clock(extension: ModuleType) -> bool:
    from interpose import session

    return session.is_open() and bool(extension.has_clock())
