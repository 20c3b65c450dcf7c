"""Quantized tensors: the classes are there to be asked for; none is ever made."""

from interpose.standins.surface import missing_names

from .quantized import (
    Float8BlockwiseQTensor,
    Float8Tensor,
    MXFP8Tensor,
    NVFP4Tensor,
    QuantizedTensor,
    QuantizedTensorBase,
    Quantizer,
)

__all__ = [
    "Float8BlockwiseQTensor",
    "Float8Tensor",
    "MXFP8Tensor",
    "NVFP4Tensor",
    "QuantizedTensor",
    "QuantizedTensorBase",
    "Quantizer",
]
__getattr__ = missing_names(__name__)
