"""An older place of Float8Tensor."""

from interpose.standins.surface import missing_names

from .tensor.quantized import Float8Tensor

__all__ = ["Float8Tensor"]
__getattr__ = missing_names(__name__)
