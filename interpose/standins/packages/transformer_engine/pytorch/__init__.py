"""The PyTorch side."""

from interpose.standins.surface import missing_names

from . import ops, optimizers
from .attention import DotProductAttention, MultiheadAttention
from .constants import DType
from .cpu_offload import get_cpu_offload_context
from .cross_entropy import parallel_cross_entropy
from .distributed import CudaRNGStatesTracker, checkpoint
from .fp8 import autocast, fp8_autocast, fp8_model_init, quantized_model_init
from .graph import make_graphed_callables
from .module import (
    Fp8Padding,
    Fp8Unpadding,
    GroupedLinear,
    LayerNorm,
    LayerNormLinear,
    LayerNormMLP,
    Linear,
    RMSNorm,
    initialize_ub,
)
from .permutation import (
    moe_permute,
    moe_permute_with_probs,
    moe_sort_chunks_by_index,
    moe_sort_chunks_by_index_with_probs,
    moe_unpermute,
)
from .tensor import Float8Tensor, QuantizedTensor
from .transformer import TransformerLayer

__all__ = [
    "CudaRNGStatesTracker",
    "DType",
    "DotProductAttention",
    "Float8Tensor",
    "Fp8Padding",
    "Fp8Unpadding",
    "GroupedLinear",
    "LayerNorm",
    "LayerNormLinear",
    "LayerNormMLP",
    "Linear",
    "MultiheadAttention",
    "QuantizedTensor",
    "RMSNorm",
    "TransformerLayer",
    "autocast",
    "checkpoint",
    "fp8_autocast",
    "fp8_model_init",
    "get_cpu_offload_context",
    "initialize_ub",
    "make_graphed_callables",
    "moe_permute",
    "moe_permute_with_probs",
    "moe_sort_chunks_by_index",
    "moe_sort_chunks_by_index_with_probs",
    "moe_unpermute",
    "ops",
    "optimizers",
    "parallel_cross_entropy",
    "quantized_model_init",
]


def is_fp8_available(return_reason: bool = False) -> object:
    """Whether the simulated GPU has fp8 units (compute capability 8.9 and above)."""
    import torch

    able = torch.cuda.get_device_capability() >= (8, 9)
    reason = "" if able else "Device compute capability 8.9 or higher required for FP8 execution."
    return (able, reason) if return_reason else able


__getattr__ = missing_names(__name__)
