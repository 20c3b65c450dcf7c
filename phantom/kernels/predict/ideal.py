"""How long a kernel's matrix products would take at the device's dense peak, for utilisation."""

from __future__ import annotations

from phantom.kernels.gpu import GpuSpec
from phantom.kernels.predict.fused_attention import attention_shape
from phantom.kernels.predict.operator_classes import class_of
from phantom.kernels.predict.products.convolution_shapes import convolution_passes
from phantom.kernels.predict.products.matmul_shapes import matmul_shapes
from phantom.kernels.request.description import KernelDescription
from phantom.kernels.request.dtypes import math_class


def flops_by_dtype(kernel: KernelDescription) -> list[tuple[float, str]]:
    """Floating-point operations of the kernel's matrix products, each with the data type of its inputs.

    A multiply-add counts as two. Empty for kernels that compute no product.
    """
    klass = class_of(kernel)
    if klass == "gemm":
        return [(shape.flops, dtype) for shape, dtype in matmul_shapes(kernel) or []]
    if klass == "attention":
        found = attention_shape(kernel)
        return [] if found is None else [(found[1].flops, found[1].dtype)]
    if klass == "triton":
        return [(float(flops), dtype) for dtype, flops in kernel.flag("dot_flops", ())]
    if klass == "conv":
        passes = convolution_passes(kernel)
        if passes is None:
            return []
        shape, names = passes
        products = {
            "forward": shape.forward, "data": shape.data_gradient, "weight": shape.weight_gradient,
        }  # fmt: skip
        return [(products[name](2).flops, shape.dtype) for name in names if name in products]
    return []


def ideal_ps(kernel: KernelDescription, gpu: GpuSpec) -> int:
    """Time of the products at the peak of their data type in picoseconds; 0 where that is not known.

    Products of fp32 inputs that run on the TF32 units (convolutions by default, matrix products where the
    script allows it) are held against those units' peak.
    """
    seconds = 0.0
    try:
        for flops, dtype in flops_by_dtype(kernel):
            peak = gpu.peak_flops_per_s(_units(kernel, dtype, gpu))
            if peak > 0:
                seconds += flops / peak
    except (ArithmeticError, LookupError, TypeError, ValueError):
        return 0  # arguments that the operator's rule does not expect: counted as unpriced where it is priced
    return round(seconds * 1e12)


def _units(kernel: KernelDescription, dtype: str, gpu: GpuSpec) -> str:
    """The units that a product of inputs of this data type runs on, by the rules that price it."""
    if dtype == "tf32":  # Triton names the units in its IR
        return dtype
    kind = math_class(dtype)
    klass = class_of(kernel)
    allowed = {"conv": bool(kernel.flag("conv_tf32", True)), "gemm": bool(kernel.flag("tf32", False))}
    if kind == "fp32" and allowed.get(klass, False) and gpu.tf32_flops_per_s > gpu.fp32_flops_per_s:
        return "tf32"
    return kind
