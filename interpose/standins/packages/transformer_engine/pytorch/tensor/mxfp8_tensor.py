"""Where the library defines MXFP8Tensor."""

from interpose.standins.surface import missing_names

from .quantized import MXFP8Tensor

__all__ = ["MXFP8Tensor"]
__getattr__ = missing_names(__name__)
