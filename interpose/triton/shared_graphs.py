"""Lets all ranks of a run use what one of them compiled of a graph, although each has a device of its own.

Inductor and AOTAutograd keep compiled graphs in a folder (torch/_inductor/codecache.py, FxGraphCache;
torch/_functorch/_aot_autograd/autograd_cache.py), but their keys and the code hold the device's index: on one
server each rank would trace and generate code anew. Here the rank's own device counts as "the own one" in
the key, and code made for another rank's device is given the own index when it is loaded. While a rank
compiles a graph the others wait for it, in real time, as they do for kernels (caches.py).

Autotuning allocates and is therefore left to each rank: which rank comes first is chance, and memory must not
depend on it. Where ranks talk to each other while they compile, each has to.
"""

from __future__ import annotations

import functools
import os
import re
import threading
from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Any

from interpose.triton.caches import INDUCTOR, take_lock

OWN = 127
"""Stands for the rank's own device in keys: no server has a device of this index."""

_MADE_FOR = "_phantom_made_for"
_AUTOTUNING = ("max_autotune", "max_autotune_gemm", "max_autotune_pointwise", "coordinate_descent_tuning")
_TALKING = ("enable_overlap_scheduling", "spmd_check")


class _Held(threading.local):
    """The locks that this thread holds, by name."""

    def __init__(self) -> None:
        self.descriptors: dict[str, int] = {}


_held = _Held()


def share_inductor_graphs(codecache: ModuleType) -> None:
    """Changes torch._inductor.codecache as it is imported: keys, loading and saving of compiled graphs."""
    pickler: Any = codecache.FxGraphCachePickler  # type: ignore[attr-defined]
    cache: Any = codecache.FxGraphCache  # type: ignore[attr-defined]
    _write_keys_without_own_index(pickler)

    lookup, hit, save = cache._lookup_graph, cache.cache_hit_post_compile, cache._save_graph

    def _lookup_graph(key: str, *args: Any, **kwargs: Any) -> Any:
        return _found_or_locked(key, lambda: lookup(key, *args, **kwargs), lambda found: found[0] is not None)

    def cache_hit_post_compile(graph: Any, *args: Any, **kwargs: Any) -> Any:
        made_for = getattr(graph, _MADE_FOR, None)
        own = _own_index()
        if made_for is not None and made_for != own:
            graph.source_code = for_device(graph.source_code, made_for, own)
            graph.cache_key, _ = codecache.PyCodeCache.write(graph.source_code)  # type: ignore[attr-defined]
            graph.device_idxs = type(graph.device_idxs)(
                own if index == made_for else index for index in graph.device_idxs
            )
            setattr(graph, _MADE_FOR, own)
        return hit(graph, *args, **kwargs)

    def _save_graph(key: str, compiled_graph: Any, *args: Any, **kwargs: Any) -> Any:
        if _holds_device_tensors(compiled_graph):
            return None
        setattr(compiled_graph, _MADE_FOR, _own_index())
        return save(key, compiled_graph, *args, **kwargs)

    cache._lookup_graph = staticmethod(_lookup_graph)
    cache.cache_hit_post_compile = staticmethod(cache_hit_post_compile)
    cache._save_graph = staticmethod(_save_graph)


def share_autograd_graphs(autograd_cache: ModuleType) -> None:
    """Changes torch._functorch._aot_autograd.autograd_cache: a rank waits for the one that compiles."""
    cache: Any = autograd_cache.AOTAutogradCache  # type: ignore[attr-defined]
    lookup = cache._lookup

    def _lookup(key: str, *args: Any, **kwargs: Any) -> Any:
        return _found_or_locked(key, lambda: lookup(key, *args, **kwargs), lambda found: found is not None)

    cache._lookup = staticmethod(_lookup)


def end_locks_after(name: str) -> Callable[[ModuleType], None]:
    """Returns a change of a module: its function `name` gives back the locks that were taken inside it."""

    def change(module: ModuleType) -> None:
        original: Callable[..., Any] = getattr(module, name)

        @functools.wraps(original)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            before = set(_held.descriptors)
            try:
                return original(*args, **kwargs)
            finally:
                _release(set(_held.descriptors) - before)

        setattr(module, name, wrapper)

    return change


def for_device(source: str, made_for: int, own: int) -> str:
    """Returns Inductor's code for device `own` instead of `made_for`.

    What names a device in it: tensors' devices, the guard, streams, and the kernels' properties
    (torch/_inductor/codegen/wrapper.py and triton.py).
    """
    return _names(made_for).sub(lambda found: found.group(1) + str(own), source)


@functools.cache
def _names(index: int) -> re.Pattern[str]:
    before = r"cuda:|type='cuda', index=|_DeviceGuard\(|cuda\.set_device\(|get_raw_stream\(|\b(?:raw_)?stream"
    return re.compile(rf"({before}){index}(?!\d)")


def _write_keys_without_own_index(pickler: Any) -> None:
    """Lets a key say "the own device" where it would hold that device's index."""
    import torch

    initialize, dumps = pickler.__init__, pickler.dumps

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        initialize(self, *args, **kwargs)
        if shares():
            self.dispatch_table[torch.device] = functools.partial(_reduce_device, _own_index())

    def with_own(self: Any, obj: Any) -> bytes:
        data: bytes = dumps(self, obj)
        return _key_names(_own_index()).sub(rb"\g<1>%d" % OWN, data) if shares() else data

    pickler.__init__ = __init__
    pickler.dumps = with_own


@functools.cache
def _key_names(index: int) -> re.Pattern[bytes]:
    return re.compile(rb"(cuda:|type='cuda', index=)%d(?!\d)" % index)


def _reduce_device(own: int, device: Any) -> tuple[Any, tuple[str]]:
    index = OWN if device.type == "cuda" and device.index == own else device.index
    return str, (f"{device.type}:{index}",)


def shares() -> bool:
    """Whether graphs are shared: there is a folder for them and nothing differs from rank to rank."""
    from torch._inductor import config

    settings: Any = config
    distributed = getattr(settings, "aten_distributed_optimizations", None)
    return (
        INDUCTOR in os.environ
        and not _any(settings, _AUTOTUNING)
        and not _any(distributed, _TALKING)
        and not getattr(settings, "distributed_max_autotune_gemm", False)
    )


def _any(settings: Any, names: Iterable[str]) -> bool:
    return any(getattr(settings, name, False) for name in names)


def _own_index() -> int:
    import torch

    return int(torch.cuda.current_device())


def _holds_device_tensors(graph: Any) -> bool:
    """Whether the graph has constants on a device: they would be loaded onto another rank's."""
    constants = getattr(graph, "constants", None) or {}
    return any(getattr(value, "is_cuda", False) for value in constants.values())


def _found_or_locked(name: str, lookup: Callable[[], Any], is_hit: Callable[[Any], bool]) -> Any:
    """Looks up; without a hit takes the name's lock, looks again, and keeps it while it is still missing."""
    found = lookup()
    if is_hit(found) or name in _held.descriptors or not shares():
        return found
    _held.descriptors[name] = take_lock(os.environ[INDUCTOR], name)
    found = lookup()
    if is_hit(found):
        _release([name])
    return found


def _release(names: Iterable[str]) -> None:
    for name in names:
        os.close(_held.descriptors.pop(name))
