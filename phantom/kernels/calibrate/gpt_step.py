"""The kernels of one micro-batch of a GPT, as descriptions: for calibration on published training rows.

Pre-norm blocks without biases, GELU, four-fold feed-forward, tied embedding and cross-entropy in fp32, bf16
products: MPT as
llm-foundry trains it under FSDP mixed precision.  No communication, no optimizer, no host.
"""

from __future__ import annotations

from dataclasses import dataclass

from phantom.kernels.request.description import IntList, KernelDescription, TensorMeta, contiguous, transposed

_BF16 = "bfloat16"


@dataclass(frozen=True)
class GptShape:
    """A GPT and its micro-batch: sizes in elements, *batch* sequences of *length* tokens."""

    layers: int
    hidden: int
    heads: int
    vocabulary: int
    batch: int
    length: int

    @property
    def tokens(self) -> int:
        return self.batch * self.length


def _linear(rows: int, inputs: int, outputs: int) -> tuple[list[KernelDescription], list[KernelDescription]]:
    """Return the products of a linear layer: forward; gradients of its input and of its weight."""
    x, y = contiguous(_BF16, rows, inputs), contiguous(_BF16, rows, outputs)
    weight = contiguous(_BF16, outputs, inputs)
    forward = KernelDescription("aten::mm", (x, transposed(_BF16, inputs, outputs)), (y,))
    data = KernelDescription("aten::mm", (y, weight), (x,))
    gradient = KernelDescription("aten::mm", (transposed(_BF16, outputs, rows), x), (weight,))
    return [forward], [data, gradient]


def _norm(rows: int, hidden: int) -> tuple[KernelDescription, KernelDescription]:
    x, weight = contiguous(_BF16, rows, hidden), contiguous(_BF16, hidden)
    statistics = contiguous("float32", rows, 1)
    shape = IntList((hidden,))
    forward = KernelDescription(
        "aten::native_layer_norm", (x, shape, weight, None, 1e-5), (x, statistics, statistics)
    )
    args = (x, x, shape, statistics, statistics, weight, None, IntList((1, 1, 0)))
    return forward, KernelDescription("aten::native_layer_norm_backward", args, (x, weight, None))


def attention_kernels(shape: GptShape, *, causal: bool = True) -> tuple[KernelDescription, KernelDescription]:
    """Return flash attention of one layer, forward and backward."""
    q = contiguous(_BF16, shape.batch, shape.heads, shape.length, shape.hidden // shape.heads)
    sums = contiguous("float32", shape.batch, shape.heads, shape.length)
    seed = TensorMeta("int64", (), ())
    n = shape.length
    forward = KernelDescription(
        "aten::_scaled_dot_product_flash_attention", (q, q, q, 0.0, causal, False, None), (q, sums)
    )  # fmt: skip
    args = (q, q, q, q, q, sums, None, None, n, n, 0.0, causal, seed, seed, None)
    return forward, KernelDescription("aten::_scaled_dot_product_flash_attention_backward", args, (q, q, q))


def block_kernels(shape: GptShape) -> tuple[list[KernelDescription], list[KernelDescription]]:
    """Return one block's kernels, forward and backward, without attention."""
    rows, hidden = shape.tokens, shape.hidden
    x, wide = contiguous(_BF16, rows, hidden), contiguous(_BF16, rows, 4 * hidden)
    triple = contiguous(_BF16, rows, 3 * hidden)
    forward: list[KernelDescription] = []
    backward: list[KernelDescription] = []
    for inputs, outputs in (
        (hidden, 3 * hidden),
        (hidden, hidden),
        (hidden, 4 * hidden),
        (4 * hidden, hidden),
    ):
        there, back = _linear(rows, inputs, outputs)
        forward += there
        backward += back
    norm, norm_backward = _norm(rows, hidden)
    add = KernelDescription("aten::add.Tensor", (x, x, 1), (x,))
    forward += [norm, norm, add, add, KernelDescription("aten::gelu", (wide, "none"), (wide,))]
    backward += [
        norm_backward, norm_backward, add, add,
        KernelDescription("aten::gelu_backward", (wide, wide, "none"), (wide,)),
        KernelDescription("aten::cat", (triple,), (triple,)),
    ]  # fmt: skip
    return forward, backward


def head_kernels(shape: GptShape) -> list[KernelDescription]:
    """Return embedding, last norm, logits and loss, forward and backward."""
    rows, hidden, vocabulary = shape.tokens, shape.hidden, shape.vocabulary
    there, back = _linear(rows, hidden, vocabulary)
    x, weight = contiguous(_BF16, rows, hidden), contiguous(_BF16, vocabulary, hidden)
    ids = contiguous("int64", rows)
    half, full = contiguous(_BF16, rows, vocabulary), contiguous("float32", rows, vocabulary)
    scalar = TensorMeta("float32", (), ())
    norm, norm_backward = _norm(rows, hidden)
    return [
        KernelDescription("aten::embedding", (weight, ids, -1, False, False), (x,)), norm, *there,
        KernelDescription("aten::_to_copy", (half, 6), (full,)),
        KernelDescription("aten::_log_softmax", (full, 1, False), (full,)),
        KernelDescription("aten::nll_loss_forward", (full, ids, None, 1, -100), (scalar, scalar)),
        KernelDescription("aten::nll_loss_backward", (scalar, full, ids, None, 1, -100, scalar), (full,)),
        KernelDescription("aten::_log_softmax_backward_data", (full, full, 1, 6), (full,)),
        KernelDescription("aten::_to_copy", (full, 15), (half,)), *back, norm_backward,
        KernelDescription("aten::embedding_dense_backward", (x, ids, vocabulary, -1, False), (weight,)),
        KernelDescription("aten::add.Tensor", (weight, weight, 1), (weight,)),
    ]  # fmt: skip
