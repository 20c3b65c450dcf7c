"""Puts the simulated process groups into torch.distributed: `nccl` for virtual devices, Gloo made visible.

`install()` may run before or after `torch.distributed` is imported. Before: `torch._C._c10d_init` is wrapped,
so that torch's own `from torch._C._distributed_c10d import ProcessGroupNCCL` finds the class. After: the
names are set where torch.distributed has already looked for them. On a CUDA wheel the real ProcessGroupNCCL
is replaced the same way.
"""

from __future__ import annotations

import functools
import sys
import warnings
import weakref
from types import ModuleType
from typing import Any

from interpose.after_import import after_import
from interpose.extension_protocol import Extension
from interpose.frameworks import cuda_extensions

C10D = "torch._C._distributed_c10d"
DISTRIBUTED = "torch.distributed.distributed_c10d"
OTHER_NCCL_CLASSES = ("ProcessGroupNCCL2", "ProcessGroupNCCLLazy")
"""Variants of the backend in torch 2.14 that differ in how they connect, not in what they do."""


_wrapped: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()


def install(extension: Extension) -> None:
    """Makes the backend `nccl` and the wrapped Gloo groups available to torch.distributed, once.

    `extension` is the loaded `interpose._C`.
    """
    import torch

    core = torch._C
    if not hasattr(core, "_c10d_init") or getattr(core, "_phantom_collectives", False):
        return
    core._phantom_collectives = True  # type: ignore[attr-defined]
    _install_nccl_version(core, extension)
    if C10D in sys.modules and hasattr(sys.modules[C10D], "Backend"):
        _add_classes(extension)
    else:
        initialise = core._c10d_init

        @functools.wraps(initialise)
        def _c10d_init() -> Any:
            done = initialise()
            _add_classes(extension)
            return done

        core._c10d_init = _c10d_init  # type: ignore[method-assign]
    after_import(DISTRIBUTED, lambda module: _patch_distributed(module, extension))


def _install_nccl_version(core: Any, extension: Extension) -> None:
    # torch/csrc/cuda/python_nccl.cpp, THCPModule_nccl_version: three fields of 16 bits.
    major, minor, patch = extension.nccl_version()
    core._nccl_version = lambda: (major << 32) | (minor << 16) | patch
    core._nccl_version_suffix = lambda: b""


def _add_classes(extension: Extension) -> None:
    module = sys.modules[C10D]
    if hasattr(module, "ProcessGroupNCCL"):
        # A CUDA build has its own, and pybind11 refuses a second class of that name.
        del module.ProcessGroupNCCL
    module.ProcessGroupNCCL = extension.make_process_group_nccl(module)  # type: ignore[attr-defined]
    cuda_extensions.refuse_user_buffers(module.ProcessGroupNCCL)
    for name in OTHER_NCCL_CLASSES:
        if hasattr(module, name):
            setattr(module, name, module.ProcessGroupNCCL)
    extension.make_host_group(module)
    module._DEFAULT_PG_NCCL_TIMEOUT = extension.nccl_default_timeout()  # type: ignore[attr-defined]
    _wrap_register_backend(module, extension)
    if not hasattr(module, "_dump_nccl_trace"):
        module._dump_nccl_trace = _empty_trace  # type: ignore[attr-defined]
        module._dump_nccl_trace_json = lambda *args, **kwargs: "{}"  # type: ignore[attr-defined]
        module._reset_fr_recording_nccl = lambda: None  # type: ignore[attr-defined]
    if not hasattr(module, "_hash_tensors"):
        module._hash_tensors = _hash_tensors  # type: ignore[attr-defined]
    if not hasattr(module, "_get_intra_node_comm_usage_counter"):
        module._get_intra_node_comm_usage_counter = lambda: 0  # type: ignore[attr-defined]


def _empty_trace(*args: Any, **kwargs: Any) -> bytes:
    """What torch's flight recorder dumps when it recorded nothing."""
    import pickle

    return pickle.dumps({"version": "2.10", "entries": [], "pg_config": {}, "pg_status": {}})


def _hash_tensors(tensors: list[Any]) -> int:
    """A stand-in for torch's debugging hash: of shapes and types, since contents may be unknown."""
    return hash(tuple((tuple(t.shape), str(t.dtype)) for t in tensors)) & 0x7FFFFFFFFFFFFFFF


def _wrap_register_backend(module: ModuleType, extension: Extension) -> None:
    group_class = module.ProcessGroup
    register = group_class._register_backend

    def _register_backend(self: Any, device: Any, backend_type: Any, backend: Any = None) -> Any:
        return register(self, device, backend_type, _wrap_backend(module, extension, backend))

    group_class._register_backend = _register_backend


def _wrap_backend(module: ModuleType, extension: Extension, backend: Any) -> Any:
    """Returns `backend`, wrapped if it is Gloo; other host backends pass, with a warning in the summary."""
    host_group = extension.make_host_group(module)
    if backend is None or type(backend) in (host_group, module.ProcessGroupNCCL):
        return backend
    innermost = backend
    wrapper = getattr(module, "_ProcessGroupWrapper", None)
    while wrapper is not None and type(innermost) is wrapper:
        innermost = innermost.wrapped_pg
    gloo = getattr(module, "ProcessGroupGloo", None)
    if gloo is not None and type(innermost) is gloo:
        # One group may be registered for several device types, and torch compares the objects.
        wrapped = _wrapped.get(backend)
        if wrapped is None:
            wrapped = _wrapped[backend] = host_group(backend)
        return wrapped
    if isinstance(innermost, module.Backend) and type(innermost) is not module.ProcessGroupNCCL:
        name = type(innermost).__name__
        if name not in ("FakeProcessGroup",):
            text = f"process group {name} is not simulated: its operations take no virtual time"
            warnings.warn(f"phantom: {text}", stacklevel=4)
            extension.warn(text)
    return backend


def _patch_distributed(module: ModuleType, extension: Extension) -> None:
    """Sets what distributed_c10d concluded at its import, and makes group creation visible."""
    c10d = sys.modules[C10D]
    nccl = c10d.ProcessGroupNCCL  # type: ignore[attr-defined]
    nccl.__module__ = DISTRIBUTED
    module.ProcessGroupNCCL = nccl  # type: ignore[attr-defined]
    module._NCCL_AVAILABLE = True  # type: ignore[attr-defined]
    for name in OTHER_NCCL_CLASSES:
        if hasattr(module, name):
            setattr(module, name, nccl)
    if "ProcessGroupNCCL" not in module.__all__:
        module.__all__ = [*module.__all__, "ProcessGroupNCCL"]  # type: ignore[attr-defined]
    timeout = c10d._DEFAULT_PG_NCCL_TIMEOUT  # type: ignore[attr-defined]
    module.default_pg_nccl_timeout = timeout  # type: ignore[attr-defined]
    constants = sys.modules.get("torch.distributed.constants")
    if constants is not None:
        constants.default_pg_nccl_timeout = timeout  # type: ignore[attr-defined]
    package = sys.modules.get("torch.distributed")
    if package is not None:
        package.ProcessGroupNCCL = nccl  # type: ignore[attr-defined]
    _wrap_group_creation(module, extension)


def _wrap_group_creation(module: ModuleType, extension: Extension) -> None:
    """The members of a Gloo group meet while it is made, in real time: the simulator must know of that
    wait."""
    create = module._new_process_group_helper

    @functools.wraps(create)
    def _new_process_group_helper(
        group_size: int,
        group_rank: int,
        global_ranks_in_group: list[int],
        backend: Any,
        store: Any,
        group_name: str,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        extension.ensure_session()
        request = 0
        members = [int(r) for r in global_ranks_in_group] or list(range(group_size))
        mine = not global_ranks_in_group or module._get_default_group().rank() in members
        if mine and "gloo" in module.BackendConfig(module.Backend(backend)).get_device_backend_map().values():
            request = extension.meet_begin(str(group_name), members)
        try:
            made = create(
                group_size, group_rank, global_ranks_in_group, backend, store, group_name, *args, **kwargs
            )
        except BaseException:
            extension.meet_failed(request)
            raise
        extension.meet_end(request)
        return made

    module._new_process_group_helper = _new_process_group_helper  # type: ignore[attr-defined]
