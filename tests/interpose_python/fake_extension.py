"""`interpose._C` in Python, without the virtual device: the session, clocks, store causality and steps only.

For tests of the Python side of interpose. Its clocks are those of docs/architecture.md: one per thread that
asked for it, started where clock_inherit() said.
"""

from __future__ import annotations

import threading
import types
from collections.abc import Callable
from typing import Any

from phantom.wire import schema as wire
from phantom.wire.fields import Account, Tail
from phantom.wire.limits import PROTOCOL
from phantom.wire.records import encode, join, unpack

READ_PS = 100_000
STORE_PS = 60_000_000


class FakeExtension(types.ModuleType):
    """All bindings are methods; `log` lists (name, arguments) of calls that matter to tests."""

    def __init__(self) -> None:
        super().__init__("interpose._C")
        self.log: list[tuple[Any, ...]] = []
        self.config: dict[str, Any] = {}
        self.records: list[bytes] = []
        self.received = 0
        self.open = False
        self.closing = False
        self.abort_text: str | None = None
        self.answers: dict[int, int] = {}
        self.requests = 0
        self.first_use: Callable[[], None] | None = None
        self.local = threading.local()
        self.reserved: dict[int, int] = {}  # thread -> start of the clock it will find
        self.joins: dict[str, list[int]] = {}
        self.clocks = 0
        self.changed = threading.Condition()

    def install(self, config: dict[str, Any]) -> None:
        self.config = config

    def set_first_use_callback(self, callback: Callable[[], None]) -> None:
        self.first_use = callback

    def ensure_session(self) -> None:
        if self.first_use is not None:
            self.first_use()

    def session_open(self, rank: int) -> None:
        self.open = True
        self.log.append(("session_open", rank))
        self.clock_now_ps()

    def is_open(self) -> bool:
        return self.open

    def session_close(self) -> None:
        self.log.append(("session_close",))
        with self.changed:
            self.closing = True
            self.open = False
            self.changed.notify_all()

    def finish(self) -> None:
        self.log.append(("finish",))
        self.record(wire.Bye())

    def hello(self, **place: int) -> None:
        self.record(wire.Hello(protocol=PROTOCOL, **place))

    def send_stats(self) -> None:
        self.record(wire.Stats(Account(ops=1)))

    def record(self, record: wire.Record) -> None:
        with self.changed:
            self.records.append(encode(record))
            self.changed.notify_all()

    def next_batch(self, timeout_s: float) -> tuple[bytes, int] | None:
        with self.changed:
            self.changed.wait_for(lambda: self.records or self.closing, timeout_s)
            if not self.records:
                return None if self.closing else (b"", self.received)
            batch, self.records = join(self.records), []
            return batch, self.received

    def on_message(self, records: bytes) -> None:
        with self.changed:
            self.received += 1
            for record in unpack(records):
                if isinstance(record, wire.Answer):
                    self.answers[record.request] = record.value
                elif isinstance(record, wire.Abort):
                    self.abort_text = f"phantom: {record.kind}: {record.message}"
            self.changed.notify_all()

    def abort(self, text: str) -> None:
        with self.changed:
            self.abort_text = self.abort_text or text
            self.changed.notify_all()

    def abort_error(self) -> str | None:
        return self.abort_text

    def set_cost_callback(self, callback: Any) -> None:
        self.cost = callback

    def await_answer(self, request: int) -> int:
        with self.changed:
            self.changed.wait_for(lambda: request in self.answers or self.abort_text)
            if self.abort_text:
                raise RuntimeError(self.abort_text)
            return self.answers.pop(request)

    def sync(self, bound_ps: int) -> None:
        self.requests += 1
        self.record(wire.Sync(self.requests, 0, Tail(0, 0, bound_ps), self.clock_now_ps(), "test"))
        self.clock_merge(self.await_answer(self.requests))

    def has_clock(self) -> bool:
        return hasattr(self.local, "now_ps")

    def clock_now_ps(self) -> int:
        if not hasattr(self.local, "now_ps"):
            self.local.start_ps = self.reserved.pop(threading.get_ident(), getattr(self.local, "start_ps", 0))
            self.local.id = self.clocks
            self.clocks += 1
            self.local.now_ps = getattr(self.local, "start_ps", 0)
        return int(self.local.now_ps)

    def clock_advance_ps(self, by_ps: int) -> None:
        self.local.now_ps = self.clock_now_ps() + by_ps

    def clock_read_ps(self) -> int:
        self.clock_advance_ps(READ_PS)
        return self.clock_now_ps()

    def clock_inherit(self, start_ps: int) -> None:
        self.local.start_ps = start_ps

    def clock_merge(self, at_ps: int) -> None:
        self.local.now_ps = max(self.clock_now_ps(), at_ps)

    def clock_reserve(self, thread: int, start_ps: int) -> None:
        self.log.append(("clock_reserve", start_ps))
        self.reserved[thread] = start_ps

    def join_begin(self, key: str) -> int:
        self.requests += 1
        self.joins.setdefault(key, []).append(self.requests)
        return self.requests

    def thread_ends(self, key: str) -> None:
        with self.changed:
            for request in self.joins.pop(key, []):
                self.answers[request] = self.clock_now_ps()
            self.changed.notify_all()
        self.local.__dict__.pop("now_ps", None)

    def clock_adopt(self, token: int) -> None:
        self.local.__dict__.pop("now_ps", None)
        self.local.start_ps = self.reserved.pop(token)

    def clock_drop(self, token: int) -> None:
        self.log.append(("clock_drop",))
        self.reserved.pop(token)

    def clock_release(self, thread: int) -> bool:
        if self.reserved.pop(thread, None) is None:
            return False
        self.log.append(("clock_release", thread))
        return True

    def backward_begins(self) -> None:
        self.log.append(("backward_begins",))

    def post(self, key: str) -> None:
        self.log.append(("post", key))
        self.clock_advance_ps(STORE_PS)
        self.record(wire.Post(key, self.local.id, self.clock_now_ps()))

    def forget(self, key: str) -> None:
        self.log.append(("forget", key))
        self.record(wire.Forget(key))

    def wait_begin(self, keys: list[str], why: str) -> int:
        self.log.append(("wait_begin", tuple(keys), why))
        self.requests += 1
        self.clock_advance_ps(STORE_PS)
        self.record(wire.Wait(self.requests, self.local.id, keys, self.clock_now_ps(), why))
        return self.requests

    def wait_end(self, request: int) -> None:
        self.log.append(("wait_end", request))
        if self.open:
            self.clock_merge(self.await_answer(request))

    def add(self, key: str, amount: int, result: int) -> None:
        self.log.append(("add", key, amount, result))
        self.requests += 1
        self.record(wire.Add(self.requests, 0, key, amount, result, self.clock_now_ps()))
        if self.open:
            self.clock_merge(self.await_answer(self.requests))

    def step_end(self, index: int) -> None:
        self.log.append(("step_end", index))
        self.record(wire.Step(index, Tail(0, 0, self.clock_now_ps()), 0, self.clock_now_ps()))

    def spool_open(self, path: str, rank: int, first_step: int, last_step: int) -> None:
        self.log.append(("spool_open", path, rank, first_step, last_step))

    def set_memory_namer(self, namer: Any) -> None:
        self.log.append(("set_memory_namer",))

    def tag_memory(self, category: str, tensors: list[Any]) -> None:
        self.log.append(("tag_memory", category, len(tensors)))

    def flush(self) -> None:
        pass

    def hide_leak_reports(self) -> None:
        pass

    def skip_inherited_destructors(self) -> None:
        pass


def cuda_surface() -> types.ModuleType:
    """A stand-in for interpose.cuda.surface: only torch._C._cuda_init exists afterwards."""
    module = types.ModuleType("interpose.cuda.surface")

    def install(extension: Any, config: dict[str, Any]) -> None:
        import torch._C

        torch._C._cuda_init = lambda: None  # type: ignore[attr-defined]

    module.install = install  # type: ignore[attr-defined]
    return module


def without_effect(name: str) -> types.ModuleType:
    """A stand-in for a part of interpose that changes torch by means of the real extension: install() does
    nothing."""
    module = types.ModuleType(name)
    for function in ("install", "watch"):
        setattr(module, function, lambda *args, **kwargs: None)
    return module
