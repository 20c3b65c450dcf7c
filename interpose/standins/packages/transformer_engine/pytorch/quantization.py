"""The newer name of the fp8 module."""

from interpose.standins.surface import missing_names

from .fp8 import (
    FP8GlobalStateManager,
    autocast,
    fp8_autocast,
    fp8_model_init,
    get_default_fp8_recipe,
    get_fp8_torch_dtype,
    quantized_model_init,
)

__all__ = [
    "FP8GlobalStateManager",
    "autocast",
    "fp8_autocast",
    "fp8_model_init",
    "get_default_fp8_recipe",
    "get_fp8_torch_dtype",
    "quantized_model_init",
]
__getattr__ = missing_names(__name__)
