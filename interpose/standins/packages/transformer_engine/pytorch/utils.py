"""Small helpers."""

from __future__ import annotations

from typing import Any

import torch

from interpose.standins.surface import missing_names


def make_weak_ref(x: Any) -> Any:
    """Tensors on the same memory that do not keep it alive: graphs of one pool then share their buffers.

    Other values are returned as they are, as the library does; tuples, lists and dictionaries item by item.
    """
    if isinstance(x, torch.Tensor):
        return _weak_tensor(x) if x.is_cuda else x
    if isinstance(x, (tuple, list)):
        return type(x)(make_weak_ref(item) for item in x)
    if isinstance(x, dict):
        return {key: make_weak_ref(value) for key, value in x.items()}
    return x


def _weak_tensor(x: torch.Tensor) -> torch.Tensor:
    # The way PyTorch's own CUDA graph trees refer to tensors of a graph's pool.
    start = x.untyped_storage().data_ptr()
    storage = torch._C._construct_storage_from_data_pointer(start, x.device, x.untyped_storage().nbytes())
    layout = {
        "size": x.shape, "stride": x.stride(), "dtype": x.dtype, "device": x.device,
        "storage_offset": x.storage_offset(),
    }  # fmt: skip
    return torch._C._construct_CUDA_Tensor_From_Storage_And_Metadata(layout, storage)


def get_device_compute_capability() -> tuple[int, int]:
    """Of the simulated GPU."""
    return torch.cuda.get_device_capability()


def get_cudnn_version() -> tuple[int, int, int]:
    """Of the simulated machine."""
    version = torch.backends.cudnn.version() or 0
    return version // 10000, version // 100 % 100, version % 100


def is_bf16_compatible() -> bool:
    """Ampere and later."""
    return torch.cuda.get_device_capability()[0] >= 8


def divide(numerator: int, denominator: int) -> int:
    """Exact division."""
    if numerator % denominator:
        raise AssertionError(f"{numerator} is not divisible by {denominator}")
    return numerator // denominator


__getattr__ = missing_names(__name__)
