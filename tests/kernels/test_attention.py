"""Fused attention: causal, grouped queries, packed sequences, scratch memory."""

from __future__ import annotations

import pytest

from phantom.kernels import CostModel, KernelDescription
from phantom.kernels.predict.fused_attention import attention_shape, scratch_bytes
from phantom.kernels.request.description import TensorMeta, contiguous


@pytest.fixture(scope="module")
def model() -> CostModel:
    return CostModel("a100", mode="predict")


def _flash(
    batch: int,
    heads: int,
    length: int,
    dim: int,
    *,
    causal: bool,
    kv_heads: int | None = None,
    p: float = 0.0,
) -> KernelDescription:
    q = contiguous("bfloat16", batch, heads, length, dim)
    k = contiguous("bfloat16", batch, kv_heads or heads, length, dim)
    sums = contiguous("float32", batch, heads, length)
    return KernelDescription(
        "aten::_scaled_dot_product_flash_attention", (q, k, k, p, causal, False, None), (q, sums)
    )


def _backward(
    batch: int, heads: int, length: int, dim: int, *, kv_heads: int | None = None, causal: bool = True
) -> KernelDescription:
    q = contiguous("bfloat16", batch, heads, length, dim)
    k = contiguous("bfloat16", batch, kv_heads or heads, length, dim)
    sums, seed = contiguous("float32", batch, heads, length), contiguous("int64")
    args = (q, q, k, k, q, sums, None, None, length, length, 0.0, causal, seed, seed, None)
    return KernelDescription("aten::_scaled_dot_product_flash_attention_backward", args, (q, k, k))


def test_causal_is_about_half_for_long_sequences(model: CostModel) -> None:
    full = model.cost(_flash(1, 16, 8192, 128, causal=False)).duration_ps
    half = model.cost(_flash(1, 16, 8192, 128, causal=True)).duration_ps
    assert 0.4 < half / full < 0.65


def test_backward_costs_two_to_four_forwards(model: CostModel) -> None:
    forward = model.cost(_flash(2, 16, 4096, 128, causal=True)).duration_ps
    backward = model.cost(_backward(2, 16, 4096, 128))
    assert 2.0 < backward.duration_ps / forward < 4.0
    assert backward.launches > 1


def test_time_grows_with_the_square_of_the_length(model: CostModel) -> None:
    short = model.cost(_flash(1, 32, 4096, 64, causal=False)).duration_ps
    long = model.cost(_flash(1, 32, 16384, 64, causal=False)).duration_ps
    assert 13 < long / short < 17


def test_dropout_costs(model: CostModel) -> None:
    plain, dropped = _flash(2, 16, 2048, 64, causal=True), _flash(2, 16, 2048, 64, causal=True, p=0.1)
    assert model.cost(dropped).duration_ps > model.cost(plain).duration_ps


def test_grouped_queries_save_nothing_forward_and_sum_their_gradients(model: CostModel) -> None:
    plain, grouped = _backward(1, 32, 2048, 128), _backward(1, 32, 2048, 128, kv_heads=8)
    assert model.cost(grouped).duration_ps > model.cost(plain).duration_ps
    assert model.cost(grouped).launches == model.cost(plain).launches + 2


def test_flash_backward_scratch_is_the_accumulator_and_the_sums(model: CostModel) -> None:
    cost = model.cost(_backward(2, 8, 1000, 80))
    assert cost.scratch_bytes == 2 * 8 * 1024 * (96 + 1) * 4  # 1000 rounds to 1024, 80 to 96
    assert model.cost(_flash(2, 8, 1000, 80, causal=True)).scratch_bytes == 0
    grouped = attention_shape(_backward(2, 8, 1000, 80, kv_heads=2))
    assert grouped is not None
    assert scratch_bytes(*grouped) == cost.scratch_bytes + 2 * 2 * 1000 * 8 * 80 * 2


def test_packed_sequences_are_taken_as_equal(model: CostModel) -> None:
    q = contiguous("bfloat16", 8192, 16, 64)
    offsets = TensorMeta("int32", (9,), (1,))
    kernel = KernelDescription(
        "aten::_flash_attention_forward",
        (q, q, q, offsets, offsets, 2048, 2048, 0.0, True, False, None),
        (q,),
    )
    found = attention_shape(kernel)
    assert found is not None
    assert (found[1].batch, found[1].q_len, found[1].heads, found[1].causal) == (8, 1024, 16, True)
    assert model.cost(kernel).duration_ps > 0


def test_every_implementation_reads_its_arguments() -> None:
    q = contiguous("bfloat16", 2, 4, 128, 64)
    efficient = KernelDescription(
        "aten::_scaled_dot_product_efficient_attention", (q, q, q, None, True, 0.0, True, None), (q,)
    )
    cudnn = KernelDescription(
        "aten::_scaled_dot_product_cudnn_attention", (q, q, q, None, True, 0.0, True, False, None), (q,)
    )
    for kernel, name in ((efficient, "efficient"), (cudnn, "cudnn")):
        found = attention_shape(kernel)
        assert found is not None
        assert found[0] == name
        assert found[1].causal


def test_a_window_limits_the_keys(model: CostModel) -> None:
    q = contiguous("bfloat16", 1, 8192, 16, 64)

    def windowed(left: int) -> KernelDescription:
        args = (q, q, q, None, None, 8192, 8192, 0.0, True, False, None, left, 0)
        return KernelDescription("aten::_flash_attention_forward", args, (q,))

    assert model.cost(windowed(512)).duration_ps < 0.4 * model.cost(windowed(-1)).duration_ps


@pytest.mark.parametrize(
    ("batch", "length", "forward", "published_s", "tolerance"),
    [
        (5, 4096, 0, 0.599, 0.02),  # kn0498, which the backward rate was taken from
        (4, 4096, 1, 0.520, 0.10),  # kn0494, taken to run without recomputation
        (168, 128, 1, 0.0942, 0.15),  # kn0524
    ],
)
def test_flash_attention_2_on_b200(
    batch: int, length: int, forward: int, published_s: float, tolerance: float
) -> None:
    """Buckets of a step of Qwen3-14B (40 layers) of published_kernels.csv: mma.sync is slow on Blackwell."""
    b200 = CostModel("b200", mode="predict")
    step_s = 40e-12 * b200.cost(_backward(batch, 40, length, 128)).duration_ps
    step_s += 40e-12 * forward * b200.cost(_flash(batch, 40, length, 128, causal=True)).duration_ps
    assert step_s == pytest.approx(published_s, rel=tolerance)
