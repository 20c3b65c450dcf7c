"""An older place of Float8Tensor."""

from .tensor.quantized import Float8Tensor

__all__ = ["Float8Tensor"]
