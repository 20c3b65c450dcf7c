"""Where the library defines Float8BlockwiseQTensor."""

from interpose.standins.surface import missing_names

from .quantized import Float8BlockwiseQTensor

__all__ = ["Float8BlockwiseQTensor"]
__getattr__ = missing_names(__name__)
