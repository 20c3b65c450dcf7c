"""Products as the library's own code calls them."""

from __future__ import annotations

from typing import Any

import torch

from interpose.standins import operators
from interpose.standins.surface import missing_names, not_covered


def general_gemm(
    A: Any, B: Any, workspace: Any = None, out_dtype: Any = None, quantization_params: Any = None,
    gelu: bool = False, gelu_in: Any = None, alpha: float = 1.0, beta: Any = None, accumulate: bool = False,
    layout: str = "TN", out: Any = None, bias: Any = None, use_split_accumulator: bool = False,
    grad: bool = False, ub: Any = None, ub_type: Any = None, extra_output: Any = None,
    bulk_overlap: bool = False,
) -> Any:  # fmt: skip
    """B op(A) in row-major terms: TN is B A^T, NN is B A, NT is B^T A."""
    if ub is not None or gelu or quantization_params is not None:
        raise not_covered("transformer_engine.pytorch", "cpp_extensions.general_gemm",
                          why="(user buffers, gelu, quantized output)")  # fmt: skip
    left = B.t() if layout[1] == "T" else B.reshape(-1, B.shape[-1])
    right = A.t() if layout[0] == "T" else A
    dtype = out_dtype or A.dtype
    if out is not None or accumulate or dtype != A.dtype:
        if out is None:
            out = torch.empty((left.shape[0], right.shape[1]), dtype=dtype, device=A.device)
        operators.wgrad_product(left, right, out.view(left.shape[0], right.shape[1]))
    elif bias is not None and not grad:
        out = torch.addmm(bias, left, right)
    else:
        out = torch.mm(left, right)
    grad_bias = B.reshape(-1, B.shape[-1]).sum(0) if grad and bias is not None else None
    if B.dim() > 2 and layout[1] == "N":
        out = out.view(*B.shape[:-1], out.shape[-1])
    return out, grad_bias, None, extra_output


__getattr__ = missing_names(__name__)
