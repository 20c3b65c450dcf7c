"""Casts to fp8 and products of fp8 tensors, as Transformer Engine launches them.

A cast writes the tensor and, on GPUs whose fp8 products want both operands along the inner dimension (before
Blackwell), its transpose. Scales are single numbers on the device (tensor-wise recipes) or one per block.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from interpose.standins import operators

aten = torch.ops.aten
MXFP8_BLOCK = 32
BLOCK = 128


@dataclass(frozen=True)
class Quantized:
    """An fp8 tensor [rows, columns], its transpose where made, and their scales."""

    data: Any
    transpose: Any
    scale: Any

    @property
    def tensors(self) -> tuple[Any, Any, Any]:
        """What has to be kept for the backward pass."""
        return self.data, self.transpose, self.scale


def needs_transpose() -> bool:
    """Whether fp8 products take the inner dimension of both operands contiguous only (Ada, Hopper)."""
    return bool(torch.cuda.get_device_capability()[0] < 10)


def quantize(
    tensor: Any, dtype: torch.dtype, *, recipe: str, rowwise: bool = True, columnwise: bool = True
) -> Quantized:
    """Casts a 2-d tensor. Current scaling needs the maximum first: one more kernel over the tensor."""
    rows, columns = tensor.shape
    device = tensor.device
    if recipe == "current":
        amax = torch.empty(1, dtype=torch.float32, device=device)
        operators.amax_kernel([tensor], [amax])
    if recipe == "mxfp8":
        scale = torch.empty((rows, max(columns // MXFP8_BLOCK, 1)), dtype=torch.uint8, device=device)
    elif recipe == "block":
        scale = torch.empty((max(columns // BLOCK, 1), rows), dtype=torch.float32, device=device)
    else:
        scale = torch.empty(1, dtype=torch.float32, device=device)
    data = torch.empty((rows, columns), dtype=dtype, device=device) if rowwise else None
    # Without a transpose the same bytes serve both (tensor-wise) or a second copy with scales along the other
    # dimension is made (block-wise).
    two = columnwise and (needs_transpose() or recipe in ("mxfp8", "block"))
    transpose = torch.empty((columns, rows), dtype=dtype, device=device) if two or not rowwise else None
    operators.quantize_kernel([tensor], [t for t in (data, transpose, scale) if t is not None])
    return Quantized(data, transpose, scale)


def product(a: Any, b: Any, out_dtype: torch.dtype, *, bias: Any = None, out: Any = None) -> Any:
    """a[m, k] b[n, k]^T of fp8 tensors, accumulated into `out` where given."""
    if out is not None:
        operators.wgrad_product(a, b.t(), out)
        return out
    one = torch.empty((), dtype=torch.float32, device=a.device)
    return aten._scaled_mm(a, b.t(), one, one, bias, None, out_dtype, True)
