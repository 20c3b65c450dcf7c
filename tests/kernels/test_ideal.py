"""Ideal times: the products of GEMM, convolution and attention at the device's peak."""

from __future__ import annotations

import pytest

from phantom.kernels.gpu import gpu_by_name
from phantom.kernels.predict.ideal import flops_by_dtype, ideal_ps
from phantom.kernels.request.description import IntList, KernelDescription, TensorMeta


def tensor(dtype: str, *sizes: int) -> TensorMeta:
    strides = [1]
    for size in reversed(sizes[1:]):
        strides.insert(0, strides[0] * size)
    return TensorMeta(dtype, sizes, tuple(strides))


def test_a_product_counts_two_per_multiply_add() -> None:
    a, b, c = tensor("bfloat16", 128, 64), tensor("bfloat16", 64, 32), tensor("bfloat16", 128, 32)
    kernel = KernelDescription("aten::mm", (a, b), (c,))
    assert flops_by_dtype(kernel) == [(2.0 * 128 * 64 * 32, "bfloat16")]
    gpu = gpu_by_name("NVIDIA H100 80GB HBM3")
    assert ideal_ps(kernel, gpu) == round(2 * 128 * 64 * 32 / gpu.bf16_flops_per_s * 1e12)


def test_fp32_is_held_against_its_own_peak() -> None:
    gpu = gpu_by_name("NVIDIA H100 80GB HBM3")
    times = []
    for dtype in ("bfloat16", "float32"):
        a = tensor(dtype, 512, 512)
        times.append(ideal_ps(KernelDescription("aten::mm", (a, a), (a,)), gpu))
    assert times[1] / times[0] == pytest.approx(gpu.bf16_flops_per_s / gpu.fp32_flops_per_s, rel=1e-3)


def test_products_on_the_tf32_units_are_held_against_their_peak() -> None:
    """A convolution of fp32 runs TF32 unless the script forbids it: utilisation stays below one."""
    gpu = gpu_by_name("NVIDIA H100 80GB HBM3")
    x, weight, out = (
        tensor("float32", 8, 64, 56, 56), tensor("float32", 64, 64, 3, 3), tensor("float32", 8, 64, 56, 56),
    )  # fmt: skip
    ones, zeros = IntList((1, 1)), IntList((0, 0))
    arguments = (x, weight, None, ones, ones, ones, False, zeros, 1)
    times = {}
    for allowed in (True, False):
        kernel = KernelDescription("aten::convolution", arguments, (out,), extra=(("conv_tf32", allowed),))
        times[allowed] = ideal_ps(kernel, gpu)
        assert times[allowed] > 0
    assert times[False] / times[True] == pytest.approx(gpu.tf32_flops_per_s / gpu.fp32_flops_per_s, rel=1e-3)
    a = tensor("float32", 512, 512)
    allowed_product = KernelDescription("aten::mm", (a, a), (a,), extra=(("tf32", True),))
    plain = KernelDescription("aten::mm", (a, a), (a,))
    assert ideal_ps(allowed_product, gpu) < ideal_ps(plain, gpu)


def test_other_kernels_and_odd_arguments_count_nothing() -> None:
    gpu = gpu_by_name("NVIDIA H100 80GB HBM3")
    x = tensor("float32", 64)
    assert ideal_ps(KernelDescription("aten::add.Tensor", (x, x), (x,)), gpu) == 0
    assert ideal_ps(KernelDescription("aten::mm", (3, "what"), (x,)), gpu) == 0
