"""Work given to a thread pool starts at its submit's virtual time; its result comes no earlier than its end.

A work item has a clock of its own from `submit` on, so that what it issues (an asynchronous checkpoint's
collectives) comes at the same virtual time whenever the pool's thread really gets to it.
"""

from __future__ import annotations

import concurrent.futures
import concurrent.futures.thread
import functools
import itertools
import os
import threading
from collections.abc import Callable
from typing import Any

from interpose.extension_protocol import Extension
from interpose.time import session, threads
from phantom.wire.limits import FUTURE_KEY

_ITEM = "_phantom_item"
# Thread identities are addresses of user space, so these tokens are nobody's.
_tokens = itertools.count(1 << 62)
_extension: Extension | None = None


class Item:
    """What a work item takes over from its submitter and leaves to who waits for it."""

    def __init__(self, start_ps: int) -> None:
        self.start_ps = start_ps
        self.token = next(_tokens)
        self.end_ps: int | None = None
        self.thread: int | None = None
        self.handover: threads.Handover | None = None
        self.ended = False
        self.awaited = False
        self.lock = threading.Lock()
        self.key = f"{FUTURE_KEY}{os.environ.get('RANK', '0')}/{os.getpid()}/{self.token}"


def install(extension: Extension) -> None:
    """Wraps the work items of ThreadPoolExecutor and the waits of Future; once per process."""
    global _extension
    if _extension is not None:
        return
    _extension = extension
    item_class: Any = concurrent.futures.thread._WorkItem  # type: ignore[attr-defined]
    future_class: Any = concurrent.futures.Future
    init, run, cancel = item_class.__init__, item_class.run, future_class.cancel

    @functools.wraps(init)
    def phantom_init(self: Any, future: Any, *args: Any, **kwargs: Any) -> None:
        init(self, future, *args, **kwargs)
        if _has_clock(extension):
            item = Item(int(extension.clock_now_ps()))
            extension.clock_reserve(item.token, item.start_ps)
            setattr(future, _ITEM, item)

    @functools.wraps(run)
    def phantom_run(self: Any) -> None:
        item: Item | None = getattr(self.future, _ITEM, None)
        if item is None or not _session_open():
            run(self)
            return
        function = self.fn

        def run_and_note_the_end(*args: Any, **kwargs: Any) -> Any:
            with item.lock:
                item.thread = threading.get_ident()
                item.handover = getattr(threading.current_thread(), threads.HANDOVER, None)
            extension.clock_adopt(item.token)
            try:
                return function(*args, **kwargs)
            finally:
                # Before the result is set: a waiter may go on as soon as it is.
                with item.lock:
                    item.ended = True
                    used = _has_clock(extension)
                    if used:
                        item.end_ps = int(extension.clock_now_ps())
                    if used or item.awaited:
                        extension.thread_ends(item.key)
                    else:
                        extension.clock_release(threading.get_ident())

        self.fn = run_and_note_the_end
        run(self)

    @functools.wraps(cancel)
    def phantom_cancel(self: Any) -> bool:
        cancelled = bool(cancel(self))
        item: Item | None = getattr(self, _ITEM, None)
        if cancelled and item is not None and _session_open():
            with item.lock:
                if not item.ended:
                    item.ended = True
                    extension.clock_drop(item.token)
        return cancelled

    item_class.__init__, item_class.run, future_class.cancel = phantom_init, phantom_run, phantom_cancel
    future_class.result = _waiting(extension, future_class.result)
    future_class.exception = _waiting(extension, future_class.exception)


def _waiting(extension: Extension, wait: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps `Future.result` or `exception`: the waiter's clock counts as infinitely late until the end."""

    @functools.wraps(wait)
    def phantom_wait(self: Any, timeout: float | None = None) -> Any:
        item: Item | None = getattr(self, _ITEM, None)
        if item is None or not _has_clock(extension) or item.thread == threading.get_ident():
            return wait(self, timeout)
        request = None
        if timeout is None:
            with item.lock:
                if not item.ended:
                    item.awaited = True
                    _hold_clock(extension, item)
                    request = extension.join_begin(item.key)
        try:
            return wait(self, timeout)
        finally:
            if request is not None:
                extension.wait_end(request)
            if item.end_ps is not None and self.done():
                extension.clock_merge(item.end_ps)

    return phantom_wait


def _hold_clock(extension: Extension, item: Item) -> None:
    """The item's clock holds the horizon while its waiter's does not, also where the pool's thread has been
    seen asleep and its clock was taken back; the waiter can wake it at the earliest."""
    if item.handover is not None:
        with item.handover.lock:
            item.handover.awaited = True
    holder = item.token if item.thread is None else item.thread
    extension.clock_reserve(holder, int(extension.clock_now_ps()))


def _session_open() -> bool:
    return session.is_open()


def _has_clock(extension: Extension) -> bool:
    return _session_open() and bool(extension.has_clock())
