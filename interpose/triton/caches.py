"""One folder of compiled code for all ranks of a run: a kernel is compiled once, not once per rank.

Inductor and Triton keep what they compiled in folders that the environment names. Here they are folders of
the run, or the user's own where TORCHINDUCTOR_CACHE_DIR or TRITON_CACHE_DIR is set. While a rank compiles a
kernel the others wait for it. The waiting is real time: virtual clocks stand still, as they do while any code
is compiled.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

INDUCTOR = "TORCHINDUCTOR_CACHE_DIR"
TRITON = "TRITON_CACHE_DIR"


def choose_folders(state: str | None) -> None:
    """Names the folders of compiled code for this process and its children, where the user named none.

    `state` is the run's folder for its processes' marks; without one everybody's default stays. A forked
    process has its environment anew and calls this after the fork.
    """
    if INDUCTOR not in os.environ and state is not None:
        os.environ[INDUCTOR] = str(Path(state, "inductor"))
    if TRITON not in os.environ and INDUCTOR in os.environ:
        # Inductor would make one folder per device: a kernel is the same on all of them.
        os.environ[TRITON] = str(Path(os.environ[INDUCTOR], "triton"))


def take_lock(cache: str, name: str) -> int:
    """Waits for a lock that all processes share and returns its descriptor.

    `cache` is the folder of compiled code that the lock is of. Closing the descriptor gives the lock back, as
    does the end of the process.
    """
    folder = Path(cache, "locks")
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(folder / f"{name}.lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def compile_once(compiler: ModuleType) -> None:
    """Lets `triton.compiler.compiler.compile` wait while another process compiles the same source.

    The second then finds the kernel in the cache. Where the folder cannot be written Triton itself says so.
    """
    original: Callable[..., Any] = compiler.compile

    def compile(src: Any, target: Any = None, options: Any = None, **more: Any) -> Any:
        folder = os.environ.get(TRITON)
        digest = getattr(src, "hash", None)
        if folder is None or digest is None:
            return original(src, target, options, **more)
        name = hashlib.sha256(f"{digest()}/{target}/{options}".encode()).hexdigest()[:24]
        lock = take_lock(folder, name)
        try:
            return original(src, target, options, **more)
        finally:
            os.close(lock)

    compile.__doc__ = original.__doc__
    compiler.compile = compile  # type: ignore[attr-defined]
