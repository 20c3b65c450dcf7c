"""The simulator sees what ranks tell each other through a torch.distributed store.

Each call on the pybind classes really happens; a record on either side of it lets the caller's clock go on no
earlier than the clock of whoever set the key (docs/architecture.md, records POST, WAIT, ADD and FORGET).
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterable
from typing import Any

from interpose.extension_protocol import Extension
from interpose.time import session

_WRAPPED = "_phantom_wrapped"
METHODS = (
    "set", "get", "wait", "add", "compare_set", "delete_key", "multi_get", "multi_set", "check", "append",
    "queue_push", "queue_pop",
)  # fmt: skip


class Keys:
    """Full names of keys: a PrefixStore adds its prefix, as the store behind it sees the key.

    Stores are told apart by what they stand for, not by object: ranks have one object each for the same
    store.
    """

    def __init__(self) -> None:
        self._prefixes: dict[int, tuple[str, Any]] = {}

    def note_prefix(self, store: Any, prefix: str, inner: Any) -> None:
        """Remembers how a PrefixStore was made (pybind gives no access to its prefix)."""
        key = id(store)
        self._prefixes[key] = (prefix, inner)
        weakref.finalize(store, self._prefixes.pop, key, None)

    def full(self, store: Any, key: str) -> str:
        """The key's name in the innermost store, with that store's place in front."""
        while True:
            noted = self._prefixes.get(id(store))
            if noted is None:
                return f"{_place(store)}/{key}"
            prefix, store = noted
            key = f"{prefix}/{key}"


def _place(store: Any) -> str:
    """What names the same store on all ranks: its port or its file."""
    for attribute in ("port", "path"):
        value = getattr(store, attribute, None)
        if value is not None:
            return str(value)
    return ""


keys = Keys()


def install(extension: Extension) -> None:
    """Wraps the methods of torch.distributed's Store classes, once per process."""
    import torch._C._distributed_c10d as c10d

    store_class: Any = c10d.Store
    if getattr(store_class, _WRAPPED, False):
        return
    setattr(store_class, _WRAPPED, True)
    recorder = Recorder(extension)
    for name in METHODS:
        original = getattr(store_class, name, None)
        if original is not None:
            setattr(store_class, name, _wrapped(original, getattr(recorder, name)))
    prefix_init = c10d.PrefixStore.__init__

    @functools.wraps(prefix_init)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        prefix_init(self, *args, **kwargs)
        prefix = kwargs["prefix"] if "prefix" in kwargs else args[0]
        inner = kwargs["store"] if "store" in kwargs else args[-1]
        keys.note_prefix(self, prefix, inner)

    c10d.PrefixStore.__init__ = __init__  # type: ignore[method-assign]


def _wrapped(original: Callable[..., Any], record: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not session.is_open():
            return original(self, *args, **kwargs)
        return record(functools.partial(original, self), self, *args, **kwargs)

    return method


class Recorder:
    """One method per store call: records around the real call."""

    def __init__(self, extension: Extension) -> None:
        self._extension = extension

    def _post(self, store: Any, key: str) -> None:
        self._extension.post(keys.full(store, key))

    def _waiting(self, store: Any, names: Iterable[str], why: str, call: Callable[[], Any]) -> Any:
        """The real wait lies between the two records, also where it fails (a timeout)."""
        full = [keys.full(store, name) for name in names]
        request = self._extension.wait_begin(full, f"store.{why}")
        try:
            result = call()
        except Exception:
            self._extension.wait_end(request)
            raise
        self._extension.wait_end(request)
        return result

    def set(self, real: Any, store: Any, key: str, value: Any) -> Any:
        """set(key, value)"""
        self._post(store, key)
        return real(key, value)

    def append(self, real: Any, store: Any, key: str, value: Any) -> Any:
        """append(key, value)"""
        self._post(store, key)
        return real(key, value)

    def multi_set(self, real: Any, store: Any, names: Any, values: Any) -> Any:
        """multi_set(keys, values)"""
        for name in names:
            self._post(store, name)
        return real(names, values)

    def get(self, real: Any, store: Any, key: str) -> Any:
        """get(key): waits for the key"""
        return self._waiting(store, [key], f"get({key!r})", lambda: real(key))

    def multi_get(self, real: Any, store: Any, names: Any) -> Any:
        """multi_get(keys): waits for all keys"""
        return self._waiting(store, names, f"multi_get({list(names)!r})", lambda: real(names))

    def wait(self, real: Any, store: Any, names: Any, *args: Any, **kwargs: Any) -> Any:
        """wait(keys[, timeout])"""
        return self._waiting(store, names, f"wait({list(names)!r})", lambda: real(names, *args, **kwargs))

    def add(self, real: Any, store: Any, key: str, amount: int) -> Any:
        """add(key, amount): a counter; whoever reads a later value has seen all adds before it"""
        result = real(key, amount)
        self._extension.add(keys.full(store, key), int(amount), int(result))
        return result

    def compare_set(self, real: Any, store: Any, key: str, expected: Any, desired: Any) -> Any:
        """compare_set(key, expected, desired): a set where it succeeds, a read of the key where it does
        not"""
        result = real(key, expected, desired)
        wanted = desired.encode() if isinstance(desired, str) else bytes(desired)
        if bytes(result) == wanted:
            self._post(store, key)
        return result

    def delete_key(self, real: Any, store: Any, key: str) -> Any:
        """delete_key(key)"""
        deleted = real(key)
        if deleted:
            self._extension.forget(keys.full(store, key))
        return deleted

    def check(self, real: Any, store: Any, names: Any) -> Any:
        """check(keys): where all are there, the caller has seen their setters"""
        present = real(names)
        if present:
            self._waiting(store, names, f"check({list(names)!r})", lambda: None)
        return present

    def queue_push(self, real: Any, store: Any, key: str, value: Any) -> Any:
        """queue_push(key, value)"""
        self._post(store, f"{key}\0queue")
        return real(key, value)

    def queue_pop(self, real: Any, store: Any, key: str, block: bool = True) -> Any:
        """queue_pop(key[, block])"""
        if not block:
            return real(key, block)
        return self._waiting(store, [f"{key}\0queue"], f"queue_pop({key!r})", lambda: real(key, block))
