"""Stand-in of flash_attn.ops.triton.layer_norm: norm with residual, in one kernel."""

from typing import Any

import torch

from interpose.standins import normalization
from interpose.standins.surface import missing_names

from ..rms_norm import RMSNorm


def _norm(
    x: Any, weight: Any, bias: Any, residual: Any, eps: float, prenorm: bool, residual_in_fp32: bool,
    is_rms_norm: bool,
) -> Any:  # fmt: skip
    summed = x if residual is None else x + residual
    if residual_in_fp32:
        summed = summed.to(torch.float32)
    shape = [x.shape[-1]]
    if is_rms_norm:
        out = normalization.rms_norm(summed, weight, shape, eps)
    else:
        out = normalization.layer_norm(summed, weight, bias, shape, eps)
    out = out.to(x.dtype)
    return (out, summed) if prenorm else out


def layer_norm_fn(
    x: Any, weight: Any, bias: Any, residual: Any = None, x1: Any = None, weight1: Any = None,
    bias1: Any = None, eps: float = 1e-6, dropout_p: float = 0.0, rowscale: Any = None,
    prenorm: bool = False, residual_in_fp32: bool = False, is_rms_norm: bool = False, **_: Any,
) -> Any:  # fmt: skip
    """Layer norm of x + residual."""
    return _norm(x, weight, bias, residual, eps, prenorm, residual_in_fp32, is_rms_norm)


def rms_norm_fn(
    x: Any, weight: Any, bias: Any, residual: Any = None, x1: Any = None, weight1: Any = None,
    bias1: Any = None, eps: float = 1e-6, dropout_p: float = 0.0, rowscale: Any = None,
    prenorm: bool = False, residual_in_fp32: bool = False, **_: Any,
) -> Any:  # fmt: skip
    """RMS norm of x + residual."""
    return _norm(x, weight, bias, residual, eps, prenorm, residual_in_fp32, True)


layer_norm = layer_norm_fn
rms_norm = rms_norm_fn
__all__ = ["RMSNorm", "layer_norm", "layer_norm_fn", "rms_norm", "rms_norm_fn"]
__getattr__ = missing_names(__name__)
