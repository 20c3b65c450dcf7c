"""Python's clocks give the rank's virtual time, by calling frame.

The script and the frameworks see the clock of their rank: `time.time()` differences are predictions. The
standard library, torch.distributed.elastic, torch.utils.data, the rendezvous and store code, gRPC, file locks
and HTTP libraries see real time, since they wait for real things (a clock that stands hangs asyncio, queues
and multiprocessing); so do threads without a virtual clock and every process that is no rank.

All clocks of a process start at a whole second, the same on all ranks where `phantom run` gave one, so that
differences are the same floats in every run.
"""

from __future__ import annotations

import math
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from interpose.extension_protocol import Extension
from interpose.time import dates, session

PS_PER_S = 10**12
PS_PER_NS = 1000

READ_PS = 100_000
"""Host time of one clock read before the session is open; afterwards the extension charges its own
model's."""

READ_GAP_PS = 500_000
"""Reads closer than this have nothing between them that costs host time (an operator costs microseconds)."""

SPIN_READS = 64
"""So many reads without anything else in between are taken for a polling loop; its reads then cost more and
more."""

SPIN_GROWTH = 1.1
SPIN_LIMIT_PS = 1_000_000_000
"""A polling loop steps by 1 ms at most, so a wait of n seconds is at most 1 ms too long."""

SLEEP_YIELD_S = 0.001
"""Real time given to others by a virtual sleep, so that a loop that waits for a file does not race past its
limit."""

FLOAT_GRID = 2.0**-26
"""perf_counter and monotonic are whole multiples of 15 ns: differences are exact whatever the machine's
uptime."""

# Whose calls see real time: top-level packages, then module prefixes.
REAL_PACKAGES = frozenset(sys.stdlib_module_names) - {"__main__", "timeit", "this", "antigravity"} | {
    "grpc", "filelock", "requests", "urllib3", "httpx", "httpcore", "aiohttp", "anyio", "trio", "uvloop",
    "websockets", "interpose", "phantom", "fsspec", "huggingface_hub", "zmq", "tornado", "psutil", "joblib",
    "botocore", "pytest", "_pytest", "hypothesis", "watchdog", "redis", "etcd", "ray", "portalocker",
    "wandb_core",
}  # fmt: skip
REAL_PREFIXES = (
    "torch.distributed.elastic",
    "torch.distributed.launcher",
    "torch.distributed.run",
    "torch.distributed.rendezvous",
    "torch.distributed.distributed_c10d",
    "torch.utils.data",
    "torch.multiprocessing",
    "torch._inductor",
    "torch._dynamo",
    "torch.utils._filelock",
)

_SECONDS = ("time", "perf_counter", "monotonic", "process_time")
_OTHERS = (
    "asctime", "clock_gettime", "clock_gettime_ns", "ctime", "gmtime", "localtime", "sleep", "strftime",
    "thread_time", "thread_time_ns",
)  # fmt: skip
_real: dict[str, Callable[..., Any]] = {
    name: getattr(time, name) for base in _SECONDS for name in (base, f"{base}_ns")
} | {name: getattr(time, name) for name in _OTHERS if hasattr(time, name)}
_real_module: dict[str, bool] = {}


class _Base:
    """Whole seconds at which the virtual clocks of this process start."""

    def __init__(self, epoch_s: int | None) -> None:
        self.by_clock_s = {name: math.floor(_real[name]()) + 1 for name in _SECONDS}
        self.by_clock_s["thread_time"] = self.by_clock_s["process_time"]
        if epoch_s is not None:
            self.by_clock_s["time"] = epoch_s


class _Reader(threading.local):
    """Polling detection of one thread."""

    last_ps = -1
    reads = 0
    extra_ps = float(READ_PS)


class VirtualClock:
    """Virtual time of the calling thread: the extension's once a session is open, before that what was slept
    and read."""

    def __init__(self, extension: Extension, epoch_s: int | None) -> None:
        self._extension = extension
        self._before_session_ps = 0
        self._handed_over = False
        self._reader = _Reader()
        self.base = _Base(epoch_s)

    def has_clock(self) -> bool:
        """Whether the calling thread runs in virtual time."""
        if session.is_open():
            return bool(self._extension.has_clock())
        return threading.current_thread() is threading.main_thread()

    def advance(self, by_ps: int) -> int:
        """Moves the calling thread's clock and returns its new reading in ps."""
        if not session.is_open():
            self._before_session_ps += by_ps
            return self._before_session_ps
        self._hand_over()
        self._extension.clock_advance_ps(by_ps)
        return int(self._extension.clock_now_ps())

    def read(self) -> int:
        """One clock read: charges its host time, more in a polling loop so that it ends; returns ps."""
        if session.is_open():
            self._hand_over()
            now_ps = int(self._extension.clock_read_ps())
        else:
            now_ps = self.advance(READ_PS)
        reader = self._reader
        if now_ps - reader.last_ps > READ_GAP_PS:
            reader.reads = 0
            reader.extra_ps = float(READ_PS)
        else:
            reader.reads += 1
            if reader.reads > SPIN_READS:
                reader.extra_ps = min(reader.extra_ps * SPIN_GROWTH, SPIN_LIMIT_PS)
                now_ps = self.advance(int(reader.extra_ps))
        reader.last_ps = now_ps
        return now_ps

    def _hand_over(self) -> None:
        """What passed before the session was open counts on the main clock, so that readings never go
        back."""
        if not self._handed_over:
            self._handed_over = True
            self._extension.clock_advance_ps(self._before_session_ps)


_clock: VirtualClock | None = None
_clock_pid = -1


def sees_real_time(module: str) -> bool:
    """Whether code of `module` (the caller's __name__) is given real time."""
    known = _real_module.get(module)
    if known is None:
        known = module.partition(".")[0] in REAL_PACKAGES or module.startswith(REAL_PREFIXES)
        _real_module[module] = known
    return known


def _virtual(depth: int = 2) -> VirtualClock | None:
    """The clock for the function `depth` frames up; None: it sees real time."""
    clock = _clock
    if clock is None or _clock_pid != os.getpid():
        return None
    if sees_real_time(sys._getframe(depth).f_globals.get("__name__") or ""):
        return None
    return clock if clock.has_clock() else None


def _make_seconds(name: str) -> Callable[[], float]:
    real = _real[name]
    exact = name != "time"

    def seconds() -> float:
        clock = _virtual()
        if clock is None:
            return float(real())
        elapsed_s = clock.read() / PS_PER_S
        if exact:
            elapsed_s = math.floor(elapsed_s / FLOAT_GRID) * FLOAT_GRID
        return clock.base.by_clock_s[name] + elapsed_s

    seconds.__name__ = seconds.__qualname__ = name
    seconds.__doc__ = real.__doc__
    return seconds


def _make_nanoseconds(name: str) -> Callable[[], int]:
    real = _real[name]
    base = name.removesuffix("_ns")

    def nanoseconds() -> int:
        clock = _virtual()
        if clock is None:
            return int(real())
        return clock.base.by_clock_s[base] * 10**9 + clock.read() // PS_PER_NS

    nanoseconds.__name__ = nanoseconds.__qualname__ = name
    nanoseconds.__doc__ = real.__doc__
    return nanoseconds


def _sleep(seconds: float, /) -> None:
    """time.sleep: a rank's clock moves on; others really sleep."""
    clock = _virtual()
    if clock is None:
        _real["sleep"](seconds)
        return
    if seconds < 0:
        raise ValueError("sleep length must be non-negative")
    clock.advance(round(seconds * PS_PER_S))
    _real["sleep"](min(float(seconds), SLEEP_YIELD_S))


_sleep.__name__ = _sleep.__qualname__ = "sleep"


def virtual_now_ns(*, depth: int) -> int | None:
    """The wall clock of the function `depth` frames above the caller, in ns; None: it sees real time."""
    clock = _virtual(depth + 2)
    return None if clock is None else clock.base.by_clock_s["time"] * 10**9 + clock.read() // PS_PER_NS


_GIVEN_LAST = {"strftime": 1}
"""Position of the time among the arguments, where it is not the first."""


def _make_calendar(name: str) -> Callable[..., Any]:
    """localtime and the like: without a time they take the present one."""
    real, position = _real[name], _GIVEN_LAST.get(name, 0)
    takes_seconds = name in ("ctime", "gmtime", "localtime")

    def calendar(*arguments: Any) -> Any:
        asks_now = len(arguments) == position or (takes_seconds and arguments == (None,))
        now_ns = virtual_now_ns(depth=1) if asks_now else None
        if now_ns is None:
            return real(*arguments)
        seconds = now_ns // 10**9
        return real(*arguments[:position], seconds if takes_seconds else _real["localtime"](seconds))

    calendar.__name__ = calendar.__qualname__ = name
    calendar.__doc__ = real.__doc__
    return calendar


_CLOCK_OF_ID = {
    getattr(time, name): clock
    for name, clock in {
        "CLOCK_BOOTTIME": "monotonic",
        "CLOCK_MONOTONIC": "monotonic",
        "CLOCK_MONOTONIC_RAW": "monotonic",
        "CLOCK_PROCESS_CPUTIME_ID": "process_time",
        "CLOCK_REALTIME": "time",
        "CLOCK_THREAD_CPUTIME_ID": "process_time",
    }.items()
    if hasattr(time, name)
}


def _make_by_id(name: str) -> Callable[[int], Any]:
    """clock_gettime and clock_gettime_ns."""
    real, unit = _real[name], 1 if name.endswith("_ns") else 1e-9

    def by_id(clk_id: int, /) -> Any:
        base = _CLOCK_OF_ID.get(clk_id)
        clock = None if base is None else _virtual()
        if clock is None or base is None:
            return real(clk_id)
        return (clock.base.by_clock_s[base] * 10**9 + clock.read() // PS_PER_NS) * unit

    by_id.__name__ = by_id.__qualname__ = name
    by_id.__doc__ = real.__doc__
    return by_id


_ours: dict[str, Callable[..., Any]] = {
    **{name: _make_seconds(name) for name in _SECONDS},
    **{f"{name}_ns": _make_nanoseconds(f"{name}_ns") for name in _SECONDS},
    **{name: _make_calendar(name) for name in ("asctime", "ctime", "gmtime", "localtime", "strftime")},
    **{name: _make_by_id(name) for name in ("clock_gettime", "clock_gettime_ns") if name in _real},
    "thread_time": _make_seconds("thread_time"),
    "thread_time_ns": _make_nanoseconds("thread_time_ns"),
    "sleep": _sleep,
}


def install(extension: Extension, *, epoch_s: int | None = None) -> None:
    """Replaces the functions of `time`, once per process. `epoch_s`: whole second at which time.time()
    starts."""
    global _clock, _clock_pid
    if _clock is not None and _clock_pid == os.getpid():
        return
    _clock = VirtualClock(extension, epoch_s)
    _clock_pid = os.getpid()
    replace_functions()


def replace_functions() -> None:
    """Puts our functions into `time`, and where modules have copies; they give real time until `install`."""
    if time.sleep is _sleep:
        return
    for name, function in _ours.items():
        setattr(time, name, function)
    dates.install(virtual_now_ns)
    _replace_copies()


def _replace_copies() -> None:
    """Exchanges what modules took by `from time import time` before the clocks were installed."""
    ours = {id(function): _ours[name] for name, function in _real.items()}
    for name, module in list(sys.modules.items()):
        if module is None or sees_real_time(name):
            continue
        for attribute, value in list(vars(module).items()):
            replacement = ours.get(id(value))
            if replacement is not None:
                setattr(module, attribute, replacement)
    timeit: Any = sys.modules.get("timeit")
    for function in () if timeit is None else (timeit.Timer.__init__, timeit.timeit, timeit.repeat):
        function.__defaults__ = tuple(ours.get(id(value), value) for value in function.__defaults__)


def leave() -> None:
    """This process sees real time from now on (a forked child of a rank)."""
    global _clock
    _clock = None


def uninstall() -> None:
    """Puts Python's own functions back; for tests."""
    leave()
    dates.uninstall()
    for name, function in _real.items():
        setattr(time, name, function)
