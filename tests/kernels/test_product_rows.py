"""Tables of products as cases: what a row means, what it holds, and which configurations are left out."""

from __future__ import annotations

import pytest

from phantom.kernels.calibrate.product_rows import (
    ProductCase,
    serving_case,
    serving_cases,
    training_case,
    training_cases,
)
from phantom.kernels.predict.constants import constants_for
from phantom.kernels.predict.rule_context import Context


def _serving(**cells: str) -> ProductCase:
    row = {"system": "h100_sxm", "lib": "trtllm", "gemm_dtype": "fp8", "m": "8192", "n": "4096", "k": "2048"}
    case = serving_case({**row, "time_us": "100", **cells})
    assert isinstance(case, ProductCase)
    return case


def _training(shape: str, op: str = "matmul") -> ProductCase:
    case = training_case({"gpu": "B200-SXM-180GB", "op": op, "shape": shape, "tflops": "1000"})
    assert isinstance(case, ProductCase)
    return case


def test_fp8_rows_hold_the_cast_and_bf16_rows_do_not() -> None:
    context = Context(_serving().gpu, constants_for("hopper"))
    for dtype, casts in (("fp8", True), ("fp8_block", True), ("bfloat16", False)):
        case = _serving(gemm_dtype=dtype)
        product_s = context.product(case.shape, case.dtype, burst=True, scaling=case.scaling).seconds
        assert (case.price_s(context) > product_s) == casts
    assert context.cast(8192 * 2048, "trtllm", "fp8").seconds > 3 * 8192 * 2048 / 3.35e12


def test_rows_without_a_model_say_why() -> None:
    row = {"system": "h100_sxm", "gemm_dtype": "int4_wo", "m": "1", "n": "1", "k": "1", "time_us": "1"}
    assert serving_case(row) == "no model of int4_wo"
    assert serving_case({**row, "system": "b60", "gemm_dtype": "fp8"}) == "no model of b60"


def test_weight_gradients_read_and_write_their_accumulator() -> None:
    case = _training("b=1, m=4096, k=8192, n=1024, layout=NT, accumulate=True, out_dtype=fp32")
    assert case.shape.reads_c
    assert case.shape.accumulator_bytes == 2 * 4 * 4096 * 1024
    assert case.klass == "bf16 products, weight gradients"
    assert case.seconds == pytest.approx(case.shape.flops / 1000e12)


def test_grouped_products_have_their_group_sizes() -> None:
    settings = (
        "ng=8, M=1024, N=7168, K=2048, dtype=bf16, out_dtype=bf16, main_grad_dtype=fp32, accumulate=True"
    )
    forward = _training(f"{settings}, stage=fwd", "group_matmul").shape
    data = _training(f"{settings}, stage=bwd_grad_act", "group_matmul").shape
    weight = _training(f"{settings}, stage=bwd_grad_w", "group_matmul").shape
    assert (forward.batch, forward.m, forward.n, forward.k) == (8, 1024, 7168, 2048)
    assert (data.m, data.n, data.k) == (1024, 2048, 7168)
    assert (weight.m, weight.n, weight.k, weight.reads_c) == (7168, 2048, 1024, True)


def test_configurations_are_left_out_whole() -> None:
    for cases in (serving_cases(), training_cases()):
        sides: dict[str, set[bool]] = {}
        for case in cases:
            sides.setdefault(case.configuration, set()).add(case.is_fitting)
        assert all(len(side) == 1 for side in sides.values())
        left_out = sum(not case.is_fitting for case in cases) / len(cases)
        assert 0.2 < left_out < 0.5
