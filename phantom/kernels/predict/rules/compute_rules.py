"""Prediction rules of kernels that compute.

Products, attention, convolution, recurrent layers, FFT, dense linear algebra.
"""

from __future__ import annotations

import math
from dataclasses import replace

from phantom.kernels.predict import fused_attention as attention_module
from phantom.kernels.predict.estimate import Estimate
from phantom.kernels.predict.products.convolution_shapes import ConvolutionShape, convolution_passes
from phantom.kernels.predict.products.gemm import GemmShape
from phantom.kernels.predict.products.matmul_shapes import matmul_shapes, product_scaling
from phantom.kernels.predict.rule_context import Context
from phantom.kernels.request.description import KernelDescription
from phantom.kernels.request.dtypes import item_bytes, math_class


def gemm(kernel: KernelDescription, context: Context) -> Estimate:
    """Products of every kind; recurrent layers go to :func:`recurrent`."""
    name = kernel.base_name
    if name in _RNN:
        return recurrent(kernel, context)
    shapes = matmul_shapes(kernel)
    if shapes is None:
        return _distance_or_rank_one(kernel, context)
    tf32 = bool(kernel.flag("tf32", False))
    scaling = product_scaling(kernel)
    total = Estimate(0.0, 0)
    for shape, dtype in shapes:
        if math_class(dtype) == "fp32" and not dtype.startswith(("float", "complex")):
            total += context.moved(shape.traffic_bytes, "other")  # integer products have no library kernel
            continue
        if min(shape.m, shape.n) == 1:
            total += context.moved(
                shape.traffic_bytes, "reduction"
            )  # a matrix-vector product reads the matrix once
        else:
            total += context.product(shape, dtype, tf32=tf32, scaling=scaling)
    return total


def _distance_or_rank_one(kernel: KernelDescription, context: Context) -> Estimate:
    name = kernel.base_name
    if name.endswith("cdist_forward") or (
        name in ("cdist", "_euclidean_dist", "_cdist_backward") and kernel.in_tensors
    ):
        a, out = kernel.in_tensors[0], (kernel.out_tensors or kernel.in_tensors)[0]
        flops = 3.0 * out.numel * (a.sizes[-1] if a.sizes else 1)
        return context.streamed(kernel, "reduction") + Estimate(
            flops / (0.3 * context.gpu.fp32_flops_per_s), 0
        )
    return context.streamed(kernel, "elementwise")


def attention(kernel: KernelDescription, context: Context) -> Estimate:
    """Fused attention forward and backward, grouped queries and causal masks included."""
    found = attention_module.attention_shape(kernel)
    if found is None:
        return context.streamed(kernel, "softmax")
    implementation, shape = found
    kind = math_class(shape.dtype)
    if implementation == "math" or kind == "fp64" or (kind == "fp32" and implementation == "flash"):
        return math_attention(shape, context)
    peak = context.gpu.fp16_flops_per_s if kind in ("fp16", "bf16") else context.gpu.peak_flops_per_s(kind)
    if kind == "fp32":
        # The memory-efficient kernels use TF32 units three times over to keep fp32 accuracy, or the CUDA
        # cores.
        peak = max(context.gpu.fp32_flops_per_s, context.gpu.tf32_flops_per_s / 3)
    group = context.constants.group(f"attention.{implementation}{'.backward' if shape.backward else ''}")
    seconds = attention_module.attention_s(shape, peak_flops_per_s=peak, gpu=context.gpu, constants=group)
    launches = 1 if not shape.backward else (3 if implementation == "flash" else 2)
    grouped = shape.kv_heads != shape.heads and shape.backward
    estimate = Estimate(seconds, launches, attention_module.scratch_bytes(implementation, shape))
    if grouped:
        # dK and dV per query head are summed over the group afterwards.
        item = item_bytes(shape.dtype)
        expanded = 2.0 * shape.batch * shape.heads * shape.kv_len * shape.head_dim * item
        summed = context.moved(expanded * (1 + shape.kv_heads / shape.heads), "reduction", launches=2)
        return Estimate(estimate.seconds + summed.seconds, launches + 2, estimate.scratch_bytes)
    return estimate


def math_attention(shape: attention_module.AttentionShape, context: Context) -> Estimate:
    """Unfused: two products, scale, mask and softmax over the whole score matrix (backward.

    Five products).
    """
    item = item_bytes(shape.dtype)
    batch = shape.batch * shape.heads
    scores = batch * shape.q_len * shape.kv_len * item
    qk = GemmShape(shape.q_len, shape.kv_len, shape.head_dim, batch=batch, in_bytes=item, out_bytes=item)
    pv = GemmShape(shape.q_len, shape.v_head_dim, shape.kv_len, batch=batch, in_bytes=item, out_bytes=item)
    products = context.product(qk, shape.dtype) + context.product(pv, shape.dtype)
    # Softmax reads and writes the scores; masking is a comparison, a fill and a copy; dropout reads, writes
    # and keeps a mask.
    forward_passes = 2.0 + (4.0 if shape.causal else 0.0) + (2.5 if shape.dropout else 0.0)
    backward_passes = 4.0 + (1.0 if shape.causal else 0.0) + (2.5 if shape.dropout else 0.0)
    passes = backward_passes if shape.backward else forward_passes
    pointwise = context.moved(passes * scores, "softmax", launches=int(passes // 2) + 1)
    scale = 2.0 if shape.backward else 1.0
    total = Estimate(
        scale * products.seconds + pointwise.seconds, int(scale * products.launches) + pointwise.launches
    )
    return Estimate(total.seconds, total.launches, int(2 * scores))


def convolution(kernel: KernelDescription, context: Context) -> Estimate:
    """Convolutions as implicit products, depthwise ones by their bytes, with the layout change cuDNN makes
    for NCHW halves.

    cuDNN may use TF32 for fp32 unless the script forbids it (torch's default allows it).
    """
    found = convolution_passes(kernel)
    if found is None:
        return context.streamed(kernel, "reduction")
    shape, passes = found
    item = item_bytes(shape.dtype)
    tf32 = bool(kernel.flag("conv_tf32", True))
    data_bytes = shape.batch * shape.in_channels * shape.in_positions * item
    result_bytes = shape.batch * shape.out_channels * shape.out_positions * item
    weight_bytes = shape.out_channels * (shape.in_channels // shape.groups) * shape.taps * item
    total = Estimate(0.0, 0)
    for part in passes:
        if part == "bias":
            total += context.moved(result_bytes, "reduction")
        elif shape.is_depthwise:
            total += context.moved(
                data_bytes + result_bytes + weight_bytes, "depthwise", launches=2 if part == "weight" else 1
            )
        else:
            total += _implicit_product(shape, part, tf32, context, data_bytes + result_bytes)
    half = shape.dtype in ("float16", "bfloat16")
    if half and not shape.channels_last and not shape.is_depthwise and passes:
        # Tensor-core kernels work on NHWC: inputs and outputs of NCHW tensors are transposed around them.
        total += context.moved(2.0 * (data_bytes + result_bytes), "transpose", launches=2)
    return Estimate(
        total.seconds, max(total.launches, 1), int(0 if shape.is_depthwise else min(data_bytes, 32 << 20))
    )


def _implicit_product(
    shape: ConvolutionShape, part: str, tf32: bool, context: Context, tensor_bytes: float
) -> Estimate:  # fmt: skip
    group = context.constants.group("conv")
    make = {"forward": shape.forward, "data": shape.data_gradient, "weight": shape.weight_gradient}[part]
    # im2col rows are not in memory: the product's A operand is read from the (smaller) image.
    product = replace(make(item_bytes(shape.dtype)), dram_bytes=tensor_bytes)
    gpu = context.gpu
    plain = shape.dtype == "float32" and (not tf32 or gpu.tf32_flops_per_s <= gpu.fp32_flops_per_s)
    rate = group["fp32"] if plain else group[part]
    if plain and shape.taps == 9 and shape.unit_stride and shape.groups == 1 and part != "weight":
        rate *= group["winograd"]
    seconds = context.product(product, shape.dtype, tf32=tf32).seconds / rate
    floor = context.moved(tensor_bytes, "copy").seconds
    return Estimate(max(seconds, floor), 2 if part == "weight" else 1)


_RNN = frozenset({"_cudnn_rnn", "_cudnn_rnn_backward", "mkldnn_rnn_layer", "mkldnn_rnn_layer_backward",
"lstm", "gru", "rnn_tanh",
                  "rnn_relu", "miopen_rnn"})  # fmt: skip
_GATES = {0: 1, 1: 1, 2: 4, 3: 3}


def recurrent(kernel: KernelDescription, context: Context) -> Estimate:
    """cuDNN recurrent layers: one product over all steps for the inputs, then one small product per step.

    Backward costs the same steps with the transposed product, plus one product per layer for the weights.
    """
    if kernel.base_name not in ("_cudnn_rnn", "_cudnn_rnn_backward"):
        return context.streamed(kernel, "other")
    backward = kernel.base_name.endswith("backward")
    shift = 4 if backward else 0
    data = kernel.need_tensor(0)
    mode, hidden, layers = (int(kernel.value(6 + shift + i, 1)) for i in (0, 1, 3))
    directions = 2 if kernel.value(13 + shift, False) else 1
    batch_first = bool(kernel.value(10 + shift, False))
    batch_sizes = kernel.value(14 + shift, ())
    if batch_sizes:
        steps, batch = len(batch_sizes), max(batch_sizes)
    else:
        steps, batch = (data.sizes[1], data.sizes[0]) if batch_first else (data.sizes[0], data.sizes[1])
    gates = _GATES.get(mode, 4)
    item = data.item_bytes
    total = Estimate(0.0, 0)
    for layer in range(layers):
        inputs = data.sizes[-1] if layer == 0 else hidden * directions
        for _ in range(directions):
            whole = GemmShape(steps * batch, gates * hidden, inputs, in_bytes=item, out_bytes=item)
            step = GemmShape(batch, gates * hidden, hidden, in_bytes=item, out_bytes=item)
            total += context.product(whole, data.dtype, tf32=True)
            one = context.product(step, data.dtype, tf32=True).seconds
            # Persistent kernels keep weights on chip between steps: half a launch floor per step.
            total += Estimate(steps * 0.7 * one, steps)
            if backward:
                total += context.product(whole, data.dtype, tf32=True)
                total += context.product(whole, data.dtype, tf32=True)
    return total


def fft(kernel: KernelDescription, context: Context) -> Estimate:
    """cuFFT: one pass over memory per factor of at most 4,096 of each transformed dimension."""
    data = kernel.need_tensor(0)
    dims = kernel.value(1, ())
    sizes = (
        [data.sizes[d] for d in dims]
        if isinstance(dims, tuple) and dims and data.sizes
        else [max(data.numel, 1)]
    )
    passes = sum(max(1, math.ceil(math.log2(max(n, 2)) / 12)) for n in sizes)
    moved = sum(t.stored_bytes for t in (data, *kernel.out_tensors))
    return context.moved(float(moved) * passes, "other", launches=passes + 1, scratch_bytes=moved)


_LINALG_FLOPS = {
    "linalg_cholesky_ex": 1 / 3, "cholesky": 1 / 3, "_linalg_solve_ex": 0.7, "linalg_lu_factor_ex": 0.7,
    "linalg_lu": 0.7,
    "linalg_inv_ex": 2.0, "_linalg_det": 0.7, "_linalg_slogdet": 0.7, "linalg_qr": 2.7, "geqrf": 1.4,
    "linalg_eig": 25.0,
    "_linalg_eigh": 9.0, "_linalg_eigvals": 10.0, "linalg_eigvals": 10.0, "_linalg_svd": 22.0,
    "linalg_lstsq": 3.0, "linalg_matrix_exp": 12.0,
    "triangular_solve": 1.0, "linalg_solve_triangular": 1.0, "_cholesky_solve_helper": 2.0,
    "cholesky_inverse": 1.0,
}  # fmt: skip


def linear_algebra(kernel: KernelDescription, context: Context) -> Estimate:
    """cuSOLVER and MAGMA factorisations.

    Flops ~ c n^3 at a small share of peak, with a launch per block column.
    """
    data = kernel.in_tensors[0] if kernel.in_tensors else None
    factor = _LINALG_FLOPS.get(kernel.base_name, 1.0)
    if data is None or len(data.sizes) < 2:
        return context.streamed(kernel, "other")
    rows, columns = data.sizes[-2:]
    batch = math.prod(data.sizes[:-2])
    small = min(rows, columns)
    flops = 2.0 * factor * batch * rows * columns * small * (4 if data.dtype.startswith("complex") else 1)
    peak = (
        context.gpu.fp64_flops_per_s
        if data.dtype in ("float64", "complex128")
        else context.gpu.fp32_flops_per_s
    )
    steps = max(1, math.ceil(small / 32)) * (8 if factor > 5 else 1)
    sweep = context.streamed(kernel, "other", launches=2 + min(steps, 512), scratch_bytes=data.logical_bytes)
    return sweep + Estimate(flops / (peak * context.constants.group("linalg")["rate"]), 0)


def other(kernel: KernelDescription, context: Context) -> Estimate:
    """FFTs, factorisations, and whatever has no rule: its bytes."""
    name = kernel.base_name
    if name.startswith("_fft_"):
        return fft(kernel, context)
    if name in _LINALG_FLOPS or (name.startswith(("linalg_", "_linalg_")) and name != "linalg_cross"):
        return linear_algebra(kernel, context)
    return context.streamed(kernel, "other")
