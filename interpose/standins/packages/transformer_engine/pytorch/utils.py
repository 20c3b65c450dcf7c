"""Small helpers."""

from __future__ import annotations

from typing import Any

import torch

from interpose.standins.surface import missing_names


def make_weak_ref(x: Any) -> Any:
    """A tensor on the same memory that does not keep it alive is not needed here: the tensor itself."""
    return x


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
