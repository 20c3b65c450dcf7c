"""Cost keys: readable, stable, and as coarse as the kernels' speed is."""

from __future__ import annotations

from phantom.kernels.key import cost_key
from phantom.kernels.request.description import (
    KernelDescription,
    Opaque,
    TensorList,
    TensorMeta,
    contiguous,
    transposed,
)

A = contiguous("bfloat16", 64, 32)


def test_reads_like_a_call() -> None:
    kernel = KernelDescription("aten::mm", (A, transposed("bfloat16", 32, 16)))
    assert cost_key(kernel) == "mm(bf16[64,32]c, bf16[32,16]t)"


def test_overload_strides_and_scalar_values_do_not_enter() -> None:
    first = KernelDescription("aten::add.Tensor", (A, A, 1), (A,))
    second = KernelDescription("aten::add.Scalar_mode", (A, A, 2), (A,))
    assert cost_key(first) == cost_key(second)
    shifted = TensorMeta("bfloat16", (64, 32), (33, 1))
    wider = TensorMeta("bfloat16", (64, 32), (40, 1))
    assert cost_key(KernelDescription("aten::neg", (shifted,))) == cost_key(
        KernelDescription("aten::neg", (wider,))
    )


def test_what_changes_the_work_enters() -> None:
    def dropout(p: float) -> KernelDescription:
        q = contiguous("bfloat16", 1, 2, 64, 64)
        return KernelDescription("aten::_scaled_dot_product_flash_attention", (q, q, q, p, True, False, None))

    assert cost_key(dropout(0.0)) != cost_key(dropout(0.1))
    assert cost_key(dropout(0.1)) == cost_key(dropout(0.2))
    x = contiguous("float32", 8, 8)
    assert cost_key(KernelDescription("aten::sum.dim_IntList", (x, 0))) != cost_key(
        KernelDescription("aten::sum.dim_IntList", (x, 1))
    )
    assert cost_key(KernelDescription("aten::pow.Tensor_Scalar", (x, 2))) != cost_key(
        KernelDescription("aten::pow.Tensor_Scalar", (x, 3))
    )


def test_generators_do_not_enter() -> None:
    first = KernelDescription("aten::normal_", (A, 0.0, 1.0, Opaque("Generator at 0x1")), (A,))
    second = KernelDescription("aten::normal_", (A, 0.0, 2.0, None), (A,))
    assert cost_key(first) == cost_key(second)


def test_equal_list_members_are_folded() -> None:
    kernel = KernelDescription("aten::_foreach_add_.Scalar", (TensorList((A, A, A, None)), 1))
    assert cost_key(kernel) == "_foreach_add_({bf16[64,32]c*3,-})"


def test_factories_differ_by_their_output() -> None:
    small, large = contiguous("float32", 4), contiguous("float32", 4096)
    assert cost_key(KernelDescription("aten::zeros", (), (small,))) != cost_key(
        KernelDescription("aten::zeros", (), (large,))
    )


def test_missing_outputs_stand_for_a_mask() -> None:
    args = (A, A, Opaque("BoolList"))
    both, one = (KernelDescription("aten::convolution_backward", args, outs) for outs in ((A, A), (A, None)))
    assert cost_key(both) != cost_key(one)


def test_custom_namespace_is_kept() -> None:
    assert cost_key(KernelDescription("mine::op", (A,), (A,))).startswith("mine::op(")
