"""Classes of tensors that are kept in fp8."""

from __future__ import annotations

from typing import Any

import torch

from interpose.standins.surface import not_covered


class QuantizedTensorBase:
    """A tensor with data in fp8 and scales."""

    def __new__(cls, *_: Any, **__: Any) -> Any:
        raise not_covered("transformer_engine.pytorch", f"tensor.{cls.__name__}", why="(tensors kept in fp8)")


class QuantizedTensor(torch.Tensor):
    """A tensor with data in fp8 and scales."""

    def __new__(cls, *_: Any, **__: Any) -> Any:
        raise not_covered("transformer_engine.pytorch", f"tensor.{cls.__name__}", why="(tensors kept in fp8)")


class Float8Tensor(QuantizedTensor):
    """One scale per tensor."""


class MXFP8Tensor(QuantizedTensor):
    """One scale per 32 values."""


class Float8BlockwiseQTensor(QuantizedTensor):
    """One scale per block."""


class NVFP4Tensor(QuantizedTensor):
    """4-bit values."""


class Quantizer(QuantizedTensorBase):
    """Casts to one of them."""
