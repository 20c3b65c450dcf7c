"""Where the library defines NVFP4Tensor."""

from interpose.standins.surface import missing_names

from .quantized import NVFP4Tensor

__all__ = ["NVFP4Tensor"]
__getattr__ = missing_names(__name__)
