"""`datetime.now` and `utcnow` give the rank's virtual time, by calling frame as the functions of `time` do.

They read the system's clock in C, and modules hold the class itself, so the two methods are exchanged in the
class. `date.today` and `datetime.today` call time.time (CPython's date_today), hence are virtual already.
"""

from __future__ import annotations

import ctypes
import datetime
import gc
from collections.abc import Callable
from typing import Any

Now = Callable[..., "int | None"]
"""`now(depth=n)`: the virtual wall clock in ns of the function n frames above the caller, None if it sees
real time."""

_real_now = vars(datetime.datetime)["now"]
_real_utcnow = vars(datetime.datetime)["utcnow"]


def _at(kind: Any, now_ns: int, zone: datetime.tzinfo | None) -> Any:
    whole_s, rest_ns = divmod(now_ns, 10**9)
    return kind.fromtimestamp(whole_s, zone).replace(microsecond=rest_ns // 1000)


def install(virtual_now_ns: Now) -> None:
    """Exchanges the two methods of the class, once per process."""

    def now(kind: Any, tz: datetime.tzinfo | None = None) -> Any:
        now_ns = virtual_now_ns(depth=1)
        return _real_now.__get__(None, kind)(tz) if now_ns is None else _at(kind, now_ns, tz)

    def utcnow(kind: Any) -> Any:
        now_ns = virtual_now_ns(depth=1)
        if now_ns is None:
            return _real_utcnow.__get__(None, kind)()
        return _at(kind, now_ns, datetime.timezone.utc).replace(tzinfo=None)

    now.__doc__, utcnow.__doc__ = _real_now.__doc__, _real_utcnow.__doc__
    _exchange(now=classmethod(now), utcnow=classmethod(utcnow))


def uninstall() -> None:
    """Puts Python's own methods back; for tests."""
    _exchange(now=_real_now, utcnow=_real_utcnow)


def _exchange(**methods: Any) -> None:
    """A class of C refuses setattr; its dictionary is what its read-only view refers to."""
    (names,) = gc.get_referents(vars(datetime.datetime))
    names.update(methods)
    ctypes.pythonapi.PyType_Modified(ctypes.py_object(datetime.datetime))
