"""Prediction rules of kernels limited by memory.

Elementwise, copies, reductions, norms, softmax, embedding, optimizers.
"""

from __future__ import annotations

import math

from phantom.kernels.predict.estimate import Estimate
from phantom.kernels.predict.memory_traffic import read_bytes, traffic_bytes, written_tensors
from phantom.kernels.predict.rule_context import Context
from phantom.kernels.predict.rules import multi_tensor
from phantom.kernels.request.description import KernelDescription, TensorList, TensorMeta

# Rows longer than this do not fit the shared memory that the one-pass softmax keeps them in.
_SOFTMAX_ROW_BYTES = 48 * 1024
_EMBEDDING_SMALL_INDICES = 3072
_PCIE_LATENCY_S = 8e-6
_PCIE_PINNED = 0.85
_PCIE_PAGEABLE = 0.3


def elementwise(kernel: KernelDescription, context: Context) -> Estimate:
    """One pass over all tensors.  A transposed operand is charged by its layout."""
    return context.streamed(kernel, "elementwise")


def copy(kernel: KernelDescription, context: Context) -> Estimate:
    """Copies, casts, fills, concatenations; between host and device at the rate of PCIe."""
    name = kernel.base_name
    devices = {tensor.device for tensor in kernel.in_tensors + kernel.out_tensors}
    if (
        "cpu" in devices
        and "cuda" in devices
        and name in ("copy", "_to_copy", "_copy_from", "to", "_copy_from_and_resize")
    ):
        return _host_copy(kernel, context)
    if name in ("_local_scalar_dense", "item"):
        return Estimate(_PCIE_LATENCY_S, 1)
    if name in ("cat", "concat", "concatenate", "stack", "hstack", "vstack", "dstack", "_chunk_cat"):
        return _concatenation(kernel, context)
    if name in ("split_with_sizes_copy", "split_copy", "unbind_copy"):
        outputs = written_tensors(kernel) or tuple(
            t for a in kernel.args if isinstance(a, TensorList) for t in a.tensors()
        )
        launches = 1 if name == "split_with_sizes_copy" else max(len(outputs), 1)
        source = kernel.tensor(0)
        moved = (source.stored_bytes if source else 0) + sum(t.logical_bytes for t in outputs)
        return context.moved(float(moved), "cat", launches=launches)
    if name.startswith("_foreach_"):
        return foreach(kernel, context)
    if name in ("slice_backward", "select_backward", "diagonal_backward", "slice_scatter", "select_scatter",
    "as_strided_scatter",
                "constant_pad_nd", "new_zeros", "unfold_backward"):  # fmt: skip
        # A fill or copy of the whole result, then a copy into the part.
        return context.streamed(kernel, "copy", launches=1 if name == "new_zeros" else 2)
    # Dense layouts with a unit inner stride are copied row by row; only a change of the inner dimension is
    # a transposition.
    layouts = {
        "c" if t.layout in ("c", "p", "s") else t.layout
        for t in kernel.in_tensors + written_tensors(kernel)
        if t.numel > 1 and not t.layout.startswith("e")
    }
    reordered = (
        name in ("copy", "clone", "_to_copy", "contiguous", "permute_copy", "transpose_copy", "t_copy")
        and len(layouts) > 1
    )
    return context.streamed(kernel, "transpose" if reordered else "copy")


def _host_copy(kernel: KernelDescription, context: Context) -> Estimate:
    source = kernel.tensor(1) if kernel.base_name == "copy" else kernel.tensor(0)
    size = source.logical_bytes if source is not None else 0
    share = _PCIE_PINNED if kernel.flag("pinned", False) else _PCIE_PAGEABLE
    return Estimate(_PCIE_LATENCY_S + size / (context.gpu.pcie_bytes_per_s * share), 1)


def _concatenation(kernel: KernelDescription, context: Context) -> Estimate:
    first = kernel.args[0] if kernel.args else None
    parts = first.tensors() if isinstance(first, TensorList) else kernel.in_tensors
    moved = 2.0 * sum(map(read_bytes, parts))
    # CatArrayBatchedCopy takes up to 128 tensors per launch.
    return context.moved(moved, "cat", launches=max(1, math.ceil(len(parts) / 128)))


def reduction(kernel: KernelDescription, context: Context) -> Estimate:
    """Reductions, scans, losses and pooling."""
    name = kernel.base_name
    if name.startswith("nll_loss"):
        return _nll_loss(kernel, context)
    if name in ("_foreach_norm", "_foreach_max", "_foreach_powsum"):
        estimate = foreach(kernel, context)
        return estimate + context.moved(0.0, "reduction")
    if name == "_amp_foreach_non_finite_check_and_unscale":
        return foreach(kernel, context)
    if name in (
        "mse_loss",
        "l1_loss",
        "huber_loss",
        "smooth_l1_loss",
        "binary_cross_entropy",
        "soft_margin_loss",
    ):
        pointwise = context.streamed(kernel, "elementwise")
        reduced = kernel.out_tensors and kernel.out_tensors[0].numel == 1 and kernel.in_tensors[0].numel > 1
        return (
            pointwise + context.moved(kernel.in_tensors[0].logical_bytes, "reduction")
            if reduced
            else pointwise
        )
    if "ctc_loss" in name:
        # One step per time step for alpha and beta.
        steps = kernel.in_tensors[0].sizes[0] if kernel.in_tensors and kernel.in_tensors[0].sizes else 1
        return context.streamed(kernel, "reduction", launches=3) + Estimate(steps * 1.5e-6, 0)
    if "pool" in name:
        return context.streamed(kernel, "pooling")
    if (
        name in ("cumsum", "cumprod", "cummax", "cummin", "_cummax_helper", "_cummin_helper")
        and kernel.in_tensors
    ):
        data = kernel.in_tensors[0]
        single = data.numel > 0 and max(data.sizes, default=1) == data.numel
        return context.streamed(
            kernel,
            "reduction",
            launches=2 if single else 1,
            scratch_bytes=data.numel // 128 * 8 if single else 0,
        )
    if name in ("equal", "allclose", "is_nonzero"):
        return context.streamed(kernel, "reduction", launches=3)
    return context.streamed(kernel, "reduction")


def _nll_loss(kernel: KernelDescription, context: Context) -> Estimate:
    """Only the target's entry of each row is touched.

    The reducing kernels use one block: 32 threads, serial over rows.
    """
    name = kernel.base_name
    backward = name.endswith("backward")
    data = kernel.in_tensors[1 if backward else 0]
    rows = data.sizes[0] if len(data.sizes) > 1 else 1
    two_d = "2d" in name
    if two_d:
        rows = data.numel // max(data.sizes[1], 1) if len(data.sizes) > 1 else 1
    touched = context.moved(rows * (64.0 + 8.0), "index")
    reduced = kernel.value(4 if backward else 3, 1) != 0
    serial = 0.0 if two_d or not reduced else math.ceil(rows / 32) * _NLL_ITERATION_S
    if backward:
        zeros = context.moved(sum(t.logical_bytes for t in kernel.out_tensors), "copy")
        return zeros + touched + Estimate(serial / 2, 0)
    return touched + Estimate(serial, 0)


_NLL_ITERATION_S = 0.25e-6


def norm(kernel: KernelDescription, context: Context) -> Estimate:
    """Layer, RMS, group and batch norm: statistics and output passes; backward reads its inputs twice."""
    name = kernel.base_name
    traffic = traffic_bytes(kernel)
    largest = max((t.logical_bytes for t in kernel.in_tensors), default=0)
    if name in ("native_layer_norm", "_fused_rms_norm", "rms_norm", "layer_norm"):
        return context.moved(traffic, "norm")
    if name in ("native_layer_norm_backward", "_fused_rms_norm_backward"):
        count = 3 if name.startswith("native") else 2
        weights = any(kernel.mask(len(kernel.args) - 1, count)[1:])
        # The gradient of weight and bias is a second kernel over grad and input.
        return context.moved(
            traffic + (2.0 * largest if weights else 0.0), "norm_backward", launches=2 if weights else 1
        )
    if name == "native_group_norm":
        return context.moved(traffic + largest, "norm", launches=3)
    if name == "native_group_norm_backward":
        return context.moved(traffic + 2.0 * largest, "norm_backward", launches=4)
    if (
        name.startswith("batch_norm_") and name != "batch_norm_backward"
    ) or name == "_native_batch_norm_legit_no_training":
        return context.moved(traffic, "norm")
    if "backward" in name:
        return context.moved(traffic + 2.0 * largest, "norm", launches=2)
    if name in ("renorm", "_weight_norm_interface", "embedding_renorm"):
        return context.moved(traffic + largest, "norm", launches=2)
    return context.moved(traffic + largest, "norm", launches=2)


def softmax(kernel: KernelDescription, context: Context) -> Estimate:
    """Softmax and log-softmax.

    One pass where a row fits on chip, else the row is read again for each of its phases.
    """
    traffic = traffic_bytes(kernel)
    data = (
        kernel.in_tensors[-1]
        if "backward" in kernel.base_name and kernel.in_tensors
        else (kernel.in_tensors or (None,))[0]
    )
    if data is not None and data.sizes and data.sizes[-1] * data.item_bytes > _SOFTMAX_ROW_BYTES:
        # The second reading comes partly out of L2.
        traffic += 0.5 * sum(t.logical_bytes for t in kernel.in_tensors)
    return context.moved(traffic, "softmax")


def embedding(kernel: KernelDescription, context: Context) -> Estimate:
    """Table look-ups move the rows asked for.

    The dense gradient is a fill of the table's size, a sort and a sum.
    """
    name = kernel.base_name
    if name == "embedding_dense_backward" or (name == "embedding_backward" and kernel.out_tensors):
        return _embedding_gradient(kernel, context, kernel.need_tensor(0), kernel.need_tensor(1))
    if name in ("_embedding_bag_dense_backward", "_embedding_bag_backward"):
        return _embedding_gradient(kernel, context, kernel.need_tensor(0), kernel.need_tensor(1))
    if name in ("embedding", "_embedding_bag", "_embedding_bag_forward_only", "embedding_bag"):
        weight, indices = kernel.need_tensor(0), kernel.need_tensor(1)
        row = weight.sizes[-1] * weight.item_bytes if weight.sizes else weight.item_bytes
        moved = indices.numel * row + indices.logical_bytes + sum(t.logical_bytes for t in kernel.out_tensors)
        return context.moved(float(moved), "embedding")
    return context.streamed(kernel, "embedding")


def _embedding_gradient(
    kernel: KernelDescription, context: Context, grad: TensorMeta, indices: TensorMeta
) -> Estimate:
    table = sum(t.logical_bytes for t in kernel.out_tensors)
    zeros = context.moved(float(table), "copy")
    row = grad.sizes[-1] if grad.sizes else 1
    moved = 3.0 * indices.numel * row * grad.item_bytes
    if indices.numel <= _EMBEDDING_SMALL_INDICES:
        return zeros + context.moved(moved, "embedding")
    # Radix sort of the indices with their positions (8 bytes each), unique keys, partial sums in fp32.
    sort = context.moved(indices.numel * 16.0 * 2 * 4, "sort", launches=6)
    partial = indices.numel // 10 * row * 4
    scratch = indices.numel * 8 * 4 + partial
    sums = context.moved(moved + 2.0 * partial, "embedding", launches=4)
    total = zeros + sort + sums
    return Estimate(total.seconds, total.launches, scratch)


def foreach(kernel: KernelDescription, context: Context) -> Estimate:
    """Multi-tensor kernels: their bytes, and the launches that PyTorch's chunking makes."""
    lists = [a for a in kernel.args if isinstance(a, TensorList) and a.tensors()]
    if not lists:
        return context.streamed(kernel, "optimizer")
    first = lists[0].tensors()
    name = kernel.base_name
    fused = name.startswith("_fused_")
    functional = 0 if kernel.is_inplace or fused or name == "_foreach_norm" else 1
    depth = len([v for v in lists if len(v.items) == len(first)]) + functional
    traffic = _fused_traffic(name, lists, kernel) if fused else traffic_bytes(kernel)
    if fused:
        depth = min(4, len(lists) - 1) if "adam" in name else min(3, len(lists))
    launches = multi_tensor.launches([t.numel for t in first], depth=depth, scalars=fused)
    return context.moved(traffic, "multi_tensor", launches=max(launches, 1))


def _fused_traffic(name: str, lists: list[TensorList], kernel: KernelDescription) -> float:
    """Adam reads parameters, gradients and moments and writes all but the gradients.

    SGD likewise with its momentum.
    """
    sizes = [float(sum(t.logical_bytes for t in values.tensors())) for values in lists]
    big = [size for size, values in zip(sizes, lists) if any(t.numel > 1 for t in values.tensors())] or sizes
    grads = big[1] if len(big) > 1 else 0.0
    return 2.0 * sum(big) - grads


def optimizer(kernel: KernelDescription, context: Context) -> Estimate:
    """Fused and for-each optimizer steps."""
    return foreach(kernel, context)
