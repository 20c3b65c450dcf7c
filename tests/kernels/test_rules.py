"""Rules of the other classes: passes, launches, scratch memory, monotony."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phantom.kernels import CostModel, KernelDescription
from phantom.kernels.predict.products.convolution_shapes import convolution_passes
from phantom.kernels.predict.rules.multi_tensor import launches
from phantom.kernels.request.description import Argument, IntList, Opaque, TensorList, TensorMeta, contiguous

MODEL = CostModel("a100", mode="predict")


def _cost_us(op: str, args: tuple[Argument, ...], outs: tuple[TensorMeta, ...]) -> float:
    return MODEL.cost(KernelDescription(op, args, outs)).duration_ps / 1e6


@settings(max_examples=30, deadline=None)
@given(count=st.integers(1, 1 << 26))
def test_twice_the_elements_is_never_faster(count: int) -> None:
    small, large = contiguous("float32", count), contiguous("float32", 2 * count)
    assert _cost_us("aten::relu", (large,), (large,)) >= _cost_us("aten::relu", (small,), (small,)) * 0.999


def test_tiny_kernels_cost_the_launch_floor() -> None:
    x = contiguous("float32", 4)
    assert 1.0 < _cost_us("aten::relu", (x,), (x,)) < 5.0


def test_an_expanded_operand_is_read_once() -> None:
    x = contiguous("float32", 4096, 4096)
    row = TensorMeta("float32", (4096, 4096), (0, 1))
    assert _cost_us("aten::mul.Tensor", (x, row), (x,)) < 0.75 * _cost_us("aten::mul.Tensor", (x, x), (x,))


def test_a_fill_does_not_read() -> None:
    x = contiguous("float32", 1 << 26)
    assert _cost_us("aten::zero_", (x,), (x,)) < 0.6 * _cost_us("aten::relu_", (x,), (x,))


def test_a_transposing_copy_is_slower_than_a_plain_one() -> None:
    x = contiguous("float32", 8192, 8192)
    turned = TensorMeta("float32", (8192, 8192), (1, 8192))
    assert _cost_us("aten::copy_", (x, turned), (x,)) > 1.2 * _cost_us("aten::copy_", (x, x), (x,))


def test_embedding_moves_rows_not_the_table() -> None:
    table, ids = contiguous("bfloat16", 50_304, 4096), contiguous("int64", 2048)
    out = contiguous("bfloat16", 2048, 4096)
    assert _cost_us("aten::embedding", (table, ids, -1, False, False), (out,)) < 60
    gradient = MODEL.cost(
        KernelDescription("aten::embedding_dense_backward", (out, ids, 50_304, -1, False), (table,))
    )
    assert gradient.duration_ps > 1e6 * 200  # the table's gradient is filled whole
    many = MODEL.cost(
        KernelDescription(
            "aten::embedding_dense_backward",
            (contiguous("bfloat16", 8192, 4096), contiguous("int64", 8192), 50_304, -1, False), (table,),
        )
    )  # fmt: skip
    assert many.launches > gradient.launches
    assert many.scratch_bytes > 0


def test_long_softmax_rows_are_read_again() -> None:
    short, long = contiguous("float32", 65_536, 1024), contiguous("float32", 1024, 65_536)
    assert _cost_us("aten::_softmax", (long, -1, False), (long,)) > 1.1 * _cost_us(
        "aten::_softmax", (short, -1, False), (short,)
    )


def test_norm_backward_reads_twice() -> None:
    x, w, s = contiguous("bfloat16", 8192, 4096), contiguous("bfloat16", 4096), contiguous("float32", 8192, 1)
    shape = IntList((4096,))
    forward = _cost_us("aten::native_layer_norm", (x, shape, w, w, 1e-5), (x, s, s))
    backward = _cost_us(
        "aten::native_layer_norm_backward", (x, x, shape, s, s, w, w, IntList((1, 1, 1))), (x, w, w)
    )
    assert backward > 2 * forward


def test_sort_needs_scratch_memory_for_long_rows_only() -> None:
    def sort(rows: int, columns: int) -> tuple[int, int]:
        x, i = contiguous("float32", rows, columns), contiguous("int64", rows, columns)
        cost = MODEL.cost(KernelDescription("aten::sort", (x, -1, False), (x, i)))
        return cost.scratch_bytes, cost.launches

    assert sort(1000, 1000)[0] == 0
    assert sort(1, 1_000_000)[0] == 2 * 12 * 1_000_000
    assert sort(1, 1_000_000)[1] > sort(1000, 1000)[1]


@pytest.mark.parametrize(
    ("numels", "depth", "expected"),
    [([1000] * 110, 1, 1), ([1000] * 111, 1, 2), ([65_536 * 320], 1, 1),
     ([65_536 * 321], 1, 2), ([1000] * 73, 4, 3),
     ([], 2, 0), ([0, 0], 2, 0)],
)  # fmt: skip
def test_multi_tensor_launches(numels: list[int], depth: int, expected: int) -> None:
    assert launches(numels, depth=depth) == expected


def test_fused_adam_moves_seven_times_the_parameters() -> None:
    tensors = TensorList(tuple(contiguous("float32", 1 << 24) for _ in range(4)))
    steps = TensorList(tuple(contiguous("float32") for _ in range(4)))
    empty = TensorList(())
    kernel = KernelDescription(
        "aten::_fused_adamw_", (tensors, tensors, tensors, tensors, empty, steps, 1e-3, 0.9, 0.99, 0.0, 1e-8)
    )
    cost = MODEL.cost(kernel)
    rate = 7 * 4 * (1 << 24) * 4 / (cost.duration_ps * 1e-12)
    assert 0.6 < rate / MODEL.gpu.memory_bytes_per_s < 0.95
    assert cost.klass == "optimizer"
    assert cost.launches == 4  # 4 tensors of 256 chunks, 320 chunks per launch


def _convolution(
    channels: int, groups: int, dtype: str, layout: str = "nchw", flag: bool | None = None
) -> KernelDescription:
    x = contiguous(dtype, 32, channels, 28, 28)
    if layout == "nhwc":
        x = TensorMeta(dtype, x.sizes, (28 * 28 * channels, 1, 28 * channels, channels))
    w = contiguous(dtype, channels, channels // groups, 3, 3)
    one = IntList((1, 1))
    extra = () if flag is None else (("conv_tf32", flag),)
    return KernelDescription(
        "aten::convolution", (x, w, None, one, one, one, False, IntList((0, 0)), groups), (x,), extra
    )


def test_convolution_is_an_implicit_product() -> None:
    found = convolution_passes(_convolution(256, 1, "float16"))
    assert found is not None
    shape, passes = found
    product = shape.forward(2)
    assert passes == ("forward",)
    assert (product.m, product.n, product.k) == (32 * 28 * 28, 256, 256 * 9)


def test_convolution_costs_follow_layout_and_groups() -> None:
    half = MODEL.cost(_convolution(256, 1, "float16")).duration_ps
    assert MODEL.cost(_convolution(256, 1, "float16", "nhwc")).duration_ps < half
    assert MODEL.cost(_convolution(256, 256, "float16")).duration_ps < half
    tf32, fp32 = (
        MODEL.cost(_convolution(256, 1, "float32", flag=flag)).duration_ps for flag in (True, False)
    )
    assert tf32 < fp32


def test_convolution_backward_takes_what_is_asked() -> None:
    x, w = contiguous("float16", 32, 64, 28, 28), contiguous("float16", 64, 64, 3, 3)
    one = IntList((1, 1))

    def backward(mask: tuple[int, int, int]) -> int:
        args = (x, x, w, IntList((64,)), one, one, one, False, IntList((0, 0)), 1, IntList(mask))
        return MODEL.cost(KernelDescription("aten::convolution_backward", args, (x, w, None))).duration_ps

    assert backward((1, 1, 1)) > backward((1, 1, 0)) > backward((0, 1, 0))
    args = (x, x, w, IntList((64,)), one, one, one, False, IntList((0, 0)), 1, Opaque("BoolList"))
    unsent = MODEL.cost(KernelDescription("aten::convolution_backward", args, (x, w, None))).duration_ps
    assert unsent == backward((1, 1, 0))


def test_a_recurrent_layer_runs_its_steps() -> None:
    def lstm(steps: int) -> KernelDescription:
        x, h = contiguous("float16", steps, 64, 512), contiguous("float16", 1, 64, 512)
        weights = TensorList((contiguous("float16", 2048, 512),) * 2)
        args = (x, weights, 4, None, h, h, 2, 512, 0, 1, False, 0.0, True, False, IntList(()), None)
        return KernelDescription("aten::_cudnn_rnn", args, (x, h, h))

    short, long = MODEL.cost(lstm(50)), MODEL.cost(lstm(100))
    assert 1.7 < long.duration_ps / short.duration_ps < 2.1
    assert long.klass == "gemm"
