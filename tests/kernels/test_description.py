"""Kernel descriptions: wire form, layouts, out variants."""

from __future__ import annotations

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from phantom.kernels.request.description import (
    IntList,
    KernelDescription,
    KernelFormatError,
    Opaque,
    TensorList,
    TensorMeta,
    contiguous,
    encode_kernel,
    parse_kernel,
    transposed,
)

_tensor = st.builds(
    lambda dtype, sizes, device: contiguous(dtype, *sizes, device=device),
    st.sampled_from(["float32", "bfloat16", "int64", "bool"]),
    st.lists(st.integers(0, 9), max_size=4),
    st.sampled_from(["cuda", "cpu"]),
)
_argument = st.one_of(
    _tensor,
    st.lists(st.one_of(_tensor, st.none()), min_size=1, max_size=4).map(lambda v: TensorList(tuple(v))),
    st.lists(st.integers(-5, 5), max_size=4).map(lambda v: IntList(tuple(v))),
    st.integers(-(2**40), 2**40),
    st.floats(allow_nan=False),
    st.booleans(),
    st.text(max_size=5),
    st.none(),
    st.just(Opaque("Generator")),
)


@given(st.lists(_argument, max_size=6), st.lists(_tensor, max_size=3))
def test_wire_form_round_trips(args: list, outs: list) -> None:
    kernel = KernelDescription("aten::something.out", tuple(args), tuple(outs), (("pinned", True),))
    wire = msgpack.unpackb(msgpack.packb(encode_kernel(kernel)), raw=False)
    assert parse_kernel(wire) == kernel


@pytest.mark.parametrize(
    ("sizes", "strides", "layout"),
    [
        ((4, 8), (8, 1), "c"),
        ((4, 8), (1, 4), "t"),
        ((2, 4, 8), (32, 1, 4), "t"),
        ((2, 3, 4, 5), (60, 1, 15, 3), "nhwc"),
        ((4, 8), (8, 0), "e1"),
        ((4, 8), (0, 1), "e0"),
        ((2, 3, 4, 8), (96, 8, 24, 1), "p"),
        ((4, 8), (16, 1), "s"),
        ((4, 8), (16, 2), "g"),
        ((1, 8), (999, 1), "c"),
        ((), (), "c"),
    ],
)
def test_layout_classes(sizes: tuple, strides: tuple, layout: str) -> None:
    assert TensorMeta("float32", sizes, strides).layout == layout


def test_expanded_tensor_stores_its_distinct_elements_only() -> None:
    tensor = TensorMeta("float32", (16, 8), (0, 1))
    assert (tensor.logical_bytes, tensor.stored_bytes) == (512, 32)


def test_out_variant_drops_the_repeated_output() -> None:
    a = contiguous("float32", 4)
    kernel = KernelDescription("aten::add.out", (a, a, 1, a), (a,))
    assert kernel.in_tensors == (a, a)
    assert kernel.base_name == "add"


def test_names() -> None:
    kernel = KernelDescription("aten::add_.Tensor")
    assert (kernel.name, kernel.base_name, kernel.overload, kernel.is_inplace) == (
        "add_",
        "add",
        "Tensor",
        True,
    )
    assert KernelDescription("aten::__and__.Tensor").base_name == "__and__"
    assert KernelDescription("flash_attn::fwd").namespace == "flash_attn"


@pytest.mark.parametrize(
    "wire",
    [{}, {"op": 3}, {"op": "aten::x", "args": [["T", "float32"]]}, {"op": "aten::x", "args": [{"a": 1}]},
    {"op": "aten::x", "args": [["Z", 1]]}],
)  # fmt: skip
def test_bad_wire_form_is_refused(wire: dict) -> None:
    with pytest.raises(KernelFormatError):
        parse_kernel(wire)


def test_a_mask_that_was_not_sent_is_read_from_the_outputs() -> None:
    x = contiguous("float32", 4)
    sent = KernelDescription("aten::convolution_backward", (x, IntList((1, 0, 1))), (x, x, x))
    assert sent.mask(1, 3) == (True, False, True)
    untold = KernelDescription("aten::convolution_backward", (x, Opaque("BoolList")), (x, None, x))
    assert untold.mask(1, 3) == (True, False, True)


def test_transposed_helper() -> None:
    assert transposed("float32", 4, 8).layout == "t"


@pytest.mark.parametrize("sizes", [[1] * 100_000, [-1, 4], [1 << 60]])
def test_a_tensor_that_cannot_be_is_refused_before_any_work(sizes: list[int]) -> None:
    tensor = ["T", "float32", sizes, [1] * len(sizes), "cuda"]
    with pytest.raises(KernelFormatError, match="argument 0: cannot read") as error:
        parse_kernel({"op": "aten::relu", "args": [tensor], "outs": [tensor]})
    assert len(str(error.value)) < 500
