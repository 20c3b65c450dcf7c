"""Stand-in of Apex's product that adds a weight gradient to the main gradient."""

from interpose.standins.operators import wgrad_accumulate
from interpose.standins.surface import missing_names

__all__ = ["wgrad_gemm_accum_fp16", "wgrad_gemm_accum_fp32"]


def wgrad_gemm_accum_fp32(data: object, grad_output: object, main_grad: object) -> None:
    """main_grad (fp32) += grad_output^T data."""
    wgrad_accumulate(grad_output, data, main_grad)


def wgrad_gemm_accum_fp16(data: object, grad_output: object, main_grad: object) -> None:
    """main_grad (16 bits) += grad_output^T data."""
    wgrad_accumulate(grad_output, data, main_grad)


__getattr__ = missing_names(__name__)
