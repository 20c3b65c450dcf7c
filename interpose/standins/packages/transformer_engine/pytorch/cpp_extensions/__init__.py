"""Products as the library's own code calls them."""

from interpose.standins.surface import missing_names

from .gemm import general_gemm

__all__ = ["general_gemm"]
__getattr__ = missing_names(__name__)
