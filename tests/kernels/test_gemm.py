"""Matrix products: waves, bounds, layouts, shapes read from operators."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phantom.kernels.gpu import gpu_by_name, known_gpus
from phantom.kernels.predict.constants import constants_for
from phantom.kernels.predict.products.gemm import GemmShape
from phantom.kernels.predict.products.matmul_shapes import matmul_shapes
from phantom.kernels.predict.rule_context import Context
from phantom.kernels.request.description import KernelDescription, TensorMeta, contiguous, transposed


def _context(name: str) -> Context:
    gpu = gpu_by_name(name)
    return Context(gpu, constants_for(gpu.architecture))


_SIZES = st.integers(1, 9000)


@settings(max_examples=60, deadline=None)
@given(
    m=_SIZES,
    n=_SIZES,
    k=_SIZES,
    batch=st.integers(1, 4),
    name=st.sampled_from(["a100", "h100", "t4", "v100", "b200"]),
)
def test_no_product_beats_the_datasheet(m: int, n: int, k: int, batch: int, name: str) -> None:
    context = _context(name)
    shape = GemmShape(m, n, k, batch=batch)
    seconds = context.product(shape, "float16").seconds
    assert seconds >= shape.flops / context.gpu.fp16_flops_per_s
    assert seconds >= shape.traffic_bytes / context.gpu.memory_bytes_per_s


@settings(max_examples=40, deadline=None)
@given(m=_SIZES, n=_SIZES, k=st.integers(64, 9000))
def test_a_longer_inner_dimension_is_not_faster(m: int, n: int, k: int) -> None:
    context = _context("a100")
    assert (
        context.product(GemmShape(m, n, 2 * k), "bfloat16").seconds
        >= context.product(GemmShape(m, n, k), "bfloat16").seconds
    )


def test_one_tile_over_a_wave_costs_a_wave() -> None:
    """On 108 SMs 216 tiles of 128 x 128 are two waves; a few more columns need a third."""
    context = _context("a100")
    full = context.product(GemmShape(3456, 1024, 2048), "float16").seconds
    over = context.product(GemmShape(3456, 1088, 2048), "float16").seconds
    assert over > 1.1 * full


@pytest.mark.parametrize("gpu", [gpu.name for gpu in known_gpus() if not gpu.is_cpu])
def test_large_products_reach_a_good_share_of_the_peak(gpu: str) -> None:
    context = _context(gpu)
    shape = GemmShape(8192, 8192, 8192)
    share = shape.flops / context.product(shape, "float16").seconds / context.gpu.fp16_flops_per_s
    assert 0.35 < share < 1.0


def test_types_are_ordered_by_their_peaks() -> None:
    context = _context("h100")
    shape = GemmShape(4096, 4096, 4096)

    def seconds(dtype: str, item: float, **options: bool) -> float:
        return context.product(GemmShape(4096, 4096, 4096, in_bytes=item), dtype, **options).seconds

    assert (
        seconds("float8_e4m3fn", 1)
        < seconds("bfloat16", 2)
        < seconds("float32", 4, tf32=True)
        < seconds("float32", 4)
    )
    assert context.product(shape, "bfloat16", burst=True).seconds < context.product(shape, "bfloat16").seconds


def test_misaligned_rows_are_slower() -> None:
    context = _context("a100")
    good = context.product(GemmShape(4096, 4096, 4096), "bfloat16").seconds
    bad = context.product(GemmShape(4096, 4095, 4095, aligned=False), "bfloat16").seconds
    assert bad > 1.3 * good


def _only_shape(kernel: KernelDescription) -> GemmShape:
    shapes = matmul_shapes(kernel)
    assert shapes is not None
    assert len(shapes) == 1
    return shapes[0][0]


def test_shapes_of_operators() -> None:
    bf16 = "bfloat16"
    linear = KernelDescription(
        "aten::addmm",
        (contiguous(bf16, 32), contiguous(bf16, 8, 16), transposed(bf16, 16, 32), 1, 1),
        (contiguous(bf16, 8, 32),),
    )
    shape = _only_shape(linear)
    assert (shape.m, shape.n, shape.k, shape.layout, shape.reads_c) == (8, 32, 16, "TN", False)
    weight_gradient = _only_shape(
        KernelDescription("aten::mm", (transposed(bf16, 32, 8), contiguous(bf16, 8, 16)))
    )
    assert (weight_gradient.m, weight_gradient.n, weight_gradient.k, weight_gradient.layout) == (
        32,
        16,
        8,
        "NT",
    )
    batched = _only_shape(
        KernelDescription("aten::bmm", (contiguous(bf16, 5, 8, 16), contiguous(bf16, 5, 16, 4)))
    )
    assert (batched.batch, batched.m, batched.n, batched.k) == (5, 8, 4, 16)
    full = _only_shape(
        KernelDescription(
            "aten::addmm", (contiguous(bf16, 8, 4), contiguous(bf16, 8, 16), contiguous(bf16, 16, 4))
        )
    )
    assert full.reads_c


def test_grouped_products_take_equal_groups() -> None:
    bf16 = "bfloat16"
    offsets = TensorMeta("int32", (4,), (1,))
    rows = _only_shape(
        KernelDescription(
            "aten::_grouped_mm", (contiguous(bf16, 4096, 64), contiguous(bf16, 4, 64, 128), offsets)
        )
    )
    assert (rows.batch, rows.m, rows.n, rows.k, rows.grouped) == (4, 1024, 128, 64, True)
    inner = _only_shape(
        KernelDescription(
            "aten::_grouped_mm", (transposed(bf16, 64, 4096), contiguous(bf16, 4096, 128), offsets)
        )
    )
    assert (inner.batch, inner.m, inner.n, inner.k) == (4, 64, 128, 1024)


def test_fp8_product_writes_its_own_type() -> None:
    e4m3 = "float8_e4m3fn"
    scale = contiguous("float32", 1)
    kernel = KernelDescription(
        "aten::_scaled_mm",
        (contiguous(e4m3, 64, 32), transposed(e4m3, 32, 16), scale, scale),
        (contiguous("bfloat16", 64, 16),),
    )
    shape = _only_shape(kernel)
    assert (shape.in_bytes, shape.out_bytes) == (1, 2)
