"""Makes `torch.cuda`'s own Python run on the virtual device: sets the names it expects in `torch._C`.

`install` must run after `torch._C` and `torch.storage` are loaded and before `torch/cuda/__init__.py` runs,
which binds many of these names: that is where `interpose.startup.import_hook` calls it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from interpose.after_import import after_import
from interpose.cuda import devices, graphs, libraries, memory, streams
from interpose.extension_protocol import Extension


def _torch_c() -> Any:
    loaded = sys.modules.get("torch._C")
    if loaded is None:
        raise RuntimeError("torch._C must be loaded before the virtual device is installed")
    return loaded


def install(extension: Extension, config: dict[str, Any] | None = None) -> None:
    """Sets every CUDA name of `torch._C`. `extension` is `interpose._C` after its own `install(config)`.

    Raises RuntimeError when `torch.cuda` has been imported already: it keeps what it bound then.
    """
    torch_c = _torch_c()
    if getattr(sys.modules.get("torch.cuda"), "_lazy_init", None) is not None:
        raise RuntimeError("the virtual device must be installed before torch.cuda is imported")
    for part in (devices, streams, memory, graphs, libraries):
        for name, value in part.names(extension).items():
            setattr(torch_c, name, value)
    # Megatron takes the presence of this name for an old PyTorch (tensor_parallel/random.py).
    if hasattr(torch_c, "_cuda_setRNGState"):
        del torch_c._cuda_setRNGState
    torch_c._has_cuda = True
    torch_c._has_cudnn = True
    torch_c._has_magma = True
    import torch

    torch.version.cuda = devices.CUDA_VERSION
    _patch_storage(torch, extension)
    _patch_comm(torch)
    # The last module that torch.cuda imports: the functions to replace are there by then.
    after_import("torch.cuda.tunable", lambda _: _patch_nvml(sys.modules["torch.cuda"], extension))


def _patch_storage(torch: Any, extension: Extension) -> None:
    generic: Callable[..., Any] = torch.UntypedStorage.resize_

    def resize_(self: Any, size: int) -> Any:
        """Changes the size in bytes; memory of the virtual device comes from its allocator."""
        if self.device.type != "cuda":
            return generic(self, size)
        extension.resize_storage(self, int(size))
        return self

    torch.UntypedStorage.resize_ = resize_
    generic_new: Callable[..., Any] = torch._C.StorageBase.__new__

    def __new__(cls: type, *args: Any, **kwargs: Any) -> Any:
        device = kwargs.get("device")
        if device is None or torch.device(device).type != "cuda":
            return generic_new(cls, *args, **kwargs)
        index = torch.device(device).index
        content = args[0] if args else 0
        if isinstance(content, int):
            return extension.new_storage(content, -1 if index is None else index)
        made = extension.new_storage(len(content), -1 if index is None else index)
        made.copy_(generic_new(cls, content))
        return made

    torch.UntypedStorage.__new__ = staticmethod(__new__)


def _patch_nvml(cuda: Any, extension: Extension) -> None:
    """Queries that torch.cuda sends to NVML. Values of an H100 under load where nothing is simulated."""

    def index_of(device: Any) -> int:
        return cuda._utils._get_device_index(device, optional=True)

    def _device_count_nvml() -> int:
        return -1  # ask the (virtual) runtime, also where a real driver is present

    def _raw_device_count_nvml() -> int:
        return -1

    def _raw_device_uuid_nvml() -> None:
        return None

    def device_memory_used(device: Any = None) -> int:
        free, total = extension.mem_get_info(index_of(device))
        return total - free

    def utilization(device: Any = None) -> int:
        return 100

    def memory_usage(device: Any = None) -> int:
        free, total = extension.mem_get_info(index_of(device))
        return round(100 * (total - free) / total)

    def temperature(device: Any = None) -> int:
        return 60

    def power_draw(device: Any = None) -> int:
        return 700_000

    def clock_rate(device: Any = None) -> int:
        return 1980

    for name, value in list(locals().items()):
        if name not in ("cuda", "extension", "index_of") and callable(value):
            setattr(cuda, name, value)


def _patch_comm(torch: Any) -> None:
    """`torch.cuda.comm` (DataParallel): copies between devices of one process."""
    torch_c = torch._C

    def _broadcast(tensor: Any, devices: list[int]) -> list[Any]:
        return [tensor.to(f"cuda:{d}", non_blocking=True) for d in devices]

    def _broadcast_out(tensor: Any, out_tensors: list[Any]) -> list[Any]:
        for out in out_tensors:
            out.copy_(tensor, non_blocking=True)
        return out_tensors

    def _broadcast_coalesced(tensors: list[Any], devices: list[int], buffer_size: int) -> list[list[Any]]:
        return [[t.to(f"cuda:{d}", non_blocking=True) for t in tensors] for d in devices]

    def _scatter(tensor: Any, devices: list[int], chunk_sizes: Any, dim: int, streams: Any = None) -> Any:
        chunks = (
            tensor.split(chunk_sizes, dim) if chunk_sizes is not None else tensor.chunk(len(devices), dim)
        )
        return tuple(c.to(f"cuda:{d}", non_blocking=True) for c, d in zip(chunks, devices))

    def _scatter_out(tensor: Any, out: list[Any], dim: int, streams: Any = None) -> Any:
        for target, chunk in zip(out, tensor.split([o.size(dim) for o in out], dim)):
            target.copy_(chunk, non_blocking=True)
        return tuple(out)

    def _gather(tensors: list[Any], dim: int, destination: int | None) -> Any:
        where = "cpu" if destination == -1 else f"cuda:{destination or 0}"
        return torch.cat([t.to(where, non_blocking=True) for t in tensors], dim)

    def _gather_out(tensors: list[Any], out: Any, dim: int) -> Any:
        out.copy_(torch.cat([t.to(out.device, non_blocking=True) for t in tensors], dim))
        return out

    for name, value in list(locals().items()):
        if name.startswith("_") and callable(value):
            setattr(torch_c, name, value)
