"""Products beyond tiles and waves: groups of their own sizes, accumulation, the power limit, block scales."""

from __future__ import annotations

import pytest

from phantom.kernels.gpu import gpu_by_name
from phantom.kernels.predict.constants import constants_for
from phantom.kernels.predict.products.gemm import GemmShape, gemm_s, product_s
from phantom.kernels.predict.products.matmul_shapes import matmul_shapes, product_scaling
from phantom.kernels.predict.rule_context import Context
from phantom.kernels.request.description import KernelDescription, TensorList, contiguous, transposed


def _context(name: str) -> Context:
    gpu = gpu_by_name(name)
    return Context(gpu, constants_for(gpu.architecture))


def _seconds(name: str, shape: GemmShape) -> tuple[float, float]:
    """Seconds as in a benchmark's loop and as in a training step."""
    context = _context(name)
    rates = {"peak_flops_per_s": context.gpu.bf16_flops_per_s, "gpu": context.gpu}
    group = context.constants.group("gemm.bf16")
    return gemm_s(shape, constants=group, **rates), product_s(shape, constants=group, **rates)


def test_groups_are_padded_to_whole_tiles() -> None:
    even = GemmShape(128, 4096, 4096, batch=8, grouped=True)
    uneven = GemmShape(128, 4096, 4096, batch=8, grouped=True, group_rows=(129,) * 4 + (127,) * 4)
    assert even.tiles(128, 128) == 8 * 32
    assert uneven.tiles(128, 128) == (4 * 2 + 4) * 32


def test_one_crowded_group_costs_as_its_rows_and_empty_groups_nothing() -> None:
    crowded = GemmShape(1024, 4096, 4096, batch=8, grouped=True, group_rows=(8192,) + (0,) * 7)
    even = GemmShape(1024, 4096, 4096, batch=8, grouped=True)
    assert crowded.tiles(128, 128) == even.tiles(128, 128)


def test_lists_of_groups_keep_their_rows() -> None:
    a = TensorList(tuple(contiguous("bfloat16", rows, 512) for rows in (100, 300)))
    b = TensorList(tuple(contiguous("bfloat16", 512, 256) for _ in range(2)))
    out = TensorList(tuple(contiguous("bfloat16", rows, 256) for rows in (100, 300)))
    kernel = KernelDescription("phantom::grouped_gemm", (a, b, out))
    ((shape, _),) = matmul_shapes(kernel) or []
    assert shape.group_rows == (100, 300)
    assert (shape.m, shape.n, shape.k, shape.batch) == (200, 256, 512, 2)


@pytest.mark.parametrize("gpu", ["a100", "b200"])
def test_accumulating_in_fp32_takes_longer(gpu: str) -> None:
    plain = GemmShape(8192, 8192, 2048, out_bytes=4.0, layout="NT")
    accumulating = GemmShape(8192, 8192, 2048, out_bytes=4.0, layout="NT", reads_c=True)
    assert _seconds(gpu, accumulating)[1] > 1.05 * _seconds(gpu, plain)[1]


def test_only_long_products_feel_the_power_limit_of_blackwell() -> None:
    short_burst, short_step = _seconds("b200", GemmShape(1024, 2048, 2048))
    long_burst, long_step = _seconds("b200", GemmShape(16384, 16384, 16384))
    assert short_step < 1.02 * short_burst
    assert long_step > 1.3 * long_burst


def test_scales_along_the_inner_dimension_are_recognised() -> None:
    a, b = contiguous("float8_e4m3fn", 256, 1024), transposed("float8_e4m3fn", 1024, 512)

    def scaling(scale_a: tuple[int, ...], scale_b: tuple[int, ...]) -> str:
        scales = (contiguous("float32", *scale_a), contiguous("float32", *scale_b))
        return product_scaling(KernelDescription("aten::_scaled_mm", (a, b, *scales)))

    assert scaling((1,), (1,)) == ""
    assert scaling((256, 1), (1, 512)) == ""
    assert scaling((256, 8), (8, 4)) == "block"
