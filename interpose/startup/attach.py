"""Makes the torch of this process see the simulated GPUs."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from interpose import environment
from interpose.after_import import after_import
from interpose.environment import Environment
from interpose.extension_protocol import Extension
from interpose.frameworks import cuda_extensions, deepspeed, host_optimizers, missing_libraries
from interpose.hooks import cpu_defaults, distributed, memory_tags, printing, routing
from interpose.time import clocks, futures, session, steps, store, threads

_extension: Extension | None = None


def attach() -> None:
    """Loads the extension, installs the virtual device and sets torch._C._cuda_*; once per process.

    Called when torch._C is loaded and torch.cuda is not. Opens no session: a process becomes a rank later,
    when it has RANK and first uses the device, or calls init_process_group. Raises
    interpose.extension.ExtensionNotBuilt or BadEnvironment, which end the import of torch with their text.
    """
    global _extension
    if _extension is not None:
        return
    import torch._C

    from interpose.cuda.surface import install
    from interpose.extension import load
    from interpose.triton.install import install as triton_install

    here = environment.read()
    extension = load()
    extension.install(here.config)
    install(extension, here.config)
    _extension = extension
    session.prepare(extension, when_open=_enter_virtual_time)
    _open_on_first_use(extension, torch._C)
    distributed.install(extension)
    routing.install(extension)
    after_import("torch.distributed.distributed_c10d", _wrap_init_process_group)
    after_import("torch.distributed.distributed_c10d", lambda _: store.install(extension))
    after_import("torch.autograd.variable", lambda module: steps.watch_backward(module, extension))
    after_import("torch.optim.optimizer", lambda module: memory_tags.watch(module, extension))
    after_import("torch.optim.optimizer", lambda module: steps.watch_optimizers(module, extension))
    after_import("torch.optim.adam", lambda module: host_optimizers.watch_adam(module, extension))
    after_import("deepspeed.ops.op_builder.builder", lambda found: deepspeed.watch_builders(found, extension))
    after_import("deepspeed.ops.op_builder.async_io", deepspeed.watch_async_io)
    after_import("deepspeed.runtime.zero.partition_parameters", deepspeed.watch_partitioned_construction)
    cuda_extensions.install()
    missing_libraries.install()
    after_import("torch._tensor_str", printing.watch)
    triton_install(extension)
    if here.config.get("blocking_launches"):
        after_import("torch.optim.optimizer", cpu_defaults.keep_loops)
        after_import("torch.optim.swa_utils", cpu_defaults.keep_loops)
    os.register_at_fork(after_in_child=_forked)
    enter_process(here)


def enter_process(here: Environment) -> None:
    """What a process does once it knows its place in the job; a rank that was forked calls it after the
    fork."""
    from interpose.triton.caches import choose_folders

    choose_folders(here.state)
    _mark_attached(here)
    _redirect_output(here)
    if here.may_become_rank:
        assert _extension is not None
        if here.config.get("host_factor"):
            _extension.install(here.config)  # a fork learns its node, and how slow its host is, only now
        _enter_virtual_time(here)


def _enter_virtual_time(here: Environment) -> None:
    """Python's clocks, threads and futures follow virtual time from now on; a second call changes nothing."""
    assert _extension is not None
    clocks.install(_extension, epoch_s=here.config.get("epoch_s"))
    threads.install(_extension)
    futures.install(_extension)


def end_as_fork() -> None:
    """Lets a forked process end without freeing what it shares with its parent, and without reports of leaks
    on its standard error."""
    if _extension is not None:
        _extension.hide_leak_reports()
        _extension.skip_inherited_destructors()


def _open_on_first_use(extension: Extension, torch_c: ModuleType) -> None:
    """Opens the session where the device is first used: from Python (torch.cuda._lazy_init) or from an
    operator."""
    extension.set_first_use_callback(session.first_use)
    initialize = torch_c._cuda_init

    def _cuda_init() -> Any:
        extension.ensure_session()
        return initialize()

    torch_c._cuda_init = _cuda_init  # type: ignore[attr-defined]


def _wrap_init_process_group(module: ModuleType) -> None:
    import functools

    original = module.init_process_group

    @functools.wraps(original)
    def init_process_group(*args: Any, **kwargs: Any) -> Any:
        rank = kwargs.get("rank", args[4] if len(args) > 4 else -1)
        world_size = kwargs.get("world_size", args[3] if len(args) > 3 else -1)
        session.open_for_process_group(rank=rank, world_size=world_size)
        return original(*args, **kwargs)

    module.init_process_group = init_process_group  # type: ignore[attr-defined]


def _mark_attached(here: Environment) -> None:
    """Leaves a mark by which `phantom run` sees that a process attached; nothing depends on it inside the
    job."""
    if here.state is None:
        return
    mark = {"pid": os.getpid(), "rank": here.rank, "child_of_rank": here.child_of_rank, "argv": sys.argv[:2]}
    try:
        Path(here.state, f"attached-{os.getpid()}").write_text(json.dumps(mark))
    except OSError as error:
        sys.stderr.write(f"phantom: cannot write to {here.state}: {error}\n")


def _redirect_output(here: Environment) -> None:
    """Gives a rank that a launcher started its own log, where its output still goes to that launcher's
    log."""
    if not here.may_become_rank or here.node_log is None or here.config.get("out") is None:
        return
    try:
        launcher_log = os.stat(here.node_log)
        ranks = Path(here.config["out"], "ranks")
        log = os.open(ranks / f"{here.rank}.log", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    except OSError:
        return  # the launcher runs elsewhere: its own log keeps the output
    for descriptor, stream in ((1, sys.stdout), (2, sys.stderr)):
        status = os.fstat(descriptor)
        if (status.st_dev, status.st_ino) == (launcher_log.st_dev, launcher_log.st_ino):
            if stream is not None:
                stream.flush()
            os.dup2(log, descriptor)
    os.close(log)


def _forked() -> None:
    """A forked child of a rank (a data-loader worker) is no rank: it drops the session and sees real time."""
    if session.drop_after_fork():
        clocks.leave()
