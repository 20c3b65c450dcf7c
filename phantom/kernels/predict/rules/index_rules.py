"""Prediction rules of indexing, sorting and random number kernels."""

from __future__ import annotations

import math

from phantom.kernels.predict.estimate import Estimate
from phantom.kernels.predict.memory_traffic import written_tensors
from phantom.kernels.predict.rule_context import Context
from phantom.kernels.request.description import KernelDescription, TensorMeta

# Rows up to this length are sorted inside one thread block.
_BLOCK_SORT = 4096
_RADIX_BITS = 8


def index(kernel: KernelDescription, context: Context) -> Estimate:
    """Gathers and scatters move what is selected, the indices, and the result.

    Accumulation by index sorts first.
    """
    name = kernel.base_name
    result = float(sum(t.logical_bytes for t in written_tensors(kernel)))
    if name in (
        "index",
        "_unsafe_index",
        "index_select",
        "gather",
        "take",
        "take_along_dim",
        "_unsafe_masked_index",
    ):
        indices = sum(t.logical_bytes for t in kernel.in_tensors[1:])
        return context.moved(2.0 * result + indices, "index")
    if name in ("nonzero", "argwhere", "nonzero_static"):
        data = kernel.in_tensors[0]
        return context.moved(
            2.0 * data.stored_bytes + result, "index", launches=4, scratch_bytes=data.numel * 4
        )
    if name == "masked_select":
        data = kernel.in_tensors[0]
        return context.moved(
            3.0 * data.stored_bytes + 2.0 * result, "index", launches=5, scratch_bytes=data.numel * 8
        )
    if name in ("masked_scatter", "masked_scatter_backward"):
        data = kernel.in_tensors[0]
        return context.moved(
            4.0 * data.stored_bytes + data.numel * 8, "index", launches=3, scratch_bytes=data.numel * 8
        )
    if name in (
        "index_put",
        "_index_put_impl",
        "_unsafe_index_put",
        "put",
        "_unsafe_masked_index_put_accumulate",
    ):
        return _index_put(kernel, context)
    if name in (
        "scatter",
        "scatter_add",
        "scatter_reduce",
        "index_add",
        "index_copy",
        "index_fill",
        "index_reduce",
    ):
        return _scatter(kernel, context)
    if name == "repeat_interleave":
        return context.streamed(kernel, "index", launches=2)
    return context.streamed(kernel, "index")


def _index_put(kernel: KernelDescription, context: Context) -> Estimate:
    target = kernel.in_tensors[0]
    values = kernel.in_tensors[-1]
    indices = kernel.in_tensors[1:-1]
    count = max((t.numel for t in indices), default=values.numel)
    accumulate = kernel.value(3, False) is True or "accumulate" in kernel.base_name
    moved = 2.0 * values.logical_bytes + sum(t.logical_bytes for t in indices)
    copied = Estimate(0.0, 0) if kernel.is_inplace else context.moved(2.0 * target.logical_bytes, "copy")
    if not accumulate:
        return copied + context.moved(moved, "index")
    # Linear indices are sorted so that equal ones are summed in order.
    sort = context.moved(count * 16.0 * 2 * 8, "sort", launches=10)
    total = copied + sort + context.moved(moved + values.logical_bytes, "index", launches=2)
    return Estimate(total.seconds, total.launches, count * 8 * 4)


def _scatter(kernel: KernelDescription, context: Context) -> Estimate:
    target = kernel.in_tensors[0]
    others = kernel.in_tensors[1:]
    source = max((t.logical_bytes for t in others), default=0)
    indices = sum(t.logical_bytes for t in others) - source
    atomic = kernel.base_name.endswith(("add", "reduce"))
    copied = Estimate(0.0, 0) if kernel.is_inplace else context.moved(2.0 * target.logical_bytes, "copy")
    return copied + context.moved((3.0 if atomic else 2.0) * source + indices, "index")


def sort(kernel: KernelDescription, context: Context) -> Estimate:
    """Radix sort: in one block for short rows, else a pass over keys and positions per 8 bits of the key."""
    name = kernel.base_name
    data = kernel.in_tensors[0] if kernel.in_tensors else None
    if data is None or data.numel == 0:
        return context.streamed(kernel, "sort")
    if name in ("topk", "kthvalue", "median", "nanmedian", "mode"):
        return _selection(kernel, context, data)
    if name in ("histc", "bincount", "histogram") or name.startswith("_histogramdd"):
        return context.streamed(kernel, "sort", launches=3)
    row = _row_length(kernel, data)
    passes = math.ceil(8 * data.item_bytes / _RADIX_BITS)
    if row <= _BLOCK_SORT and name in ("sort", "argsort", "msort"):
        moved = data.logical_bytes + data.numel * 8.0 + sum(t.logical_bytes for t in kernel.out_tensors)
        return context.moved(moved, "sort", launches=2)
    rows = data.numel // max(row, 1)
    pairs = data.numel * (data.item_bytes + 8)
    segments = 2 if rows > 1 else 1  # many long rows: sorted twice, by value and by row
    extra = 5 if name.startswith(("unique", "_unique")) else 0
    scratch = 2 * pairs if segments == 1 else 3 * pairs
    return context.moved(
        2.0 * pairs * passes * segments,
        "sort",
        launches=(passes + 2) * segments + extra,
        scratch_bytes=scratch,
    )


def _row_length(kernel: KernelDescription, data: TensorMeta) -> int:
    dims = [a for a in kernel.args[1:] if isinstance(a, int) and not isinstance(a, bool)]
    dim = dims[0] if dims and kernel.base_name != "topk" else -1
    if not data.sizes or kernel.base_name.startswith(("unique", "_unique")):
        return data.numel
    return data.sizes[dim] if -len(data.sizes) <= dim < len(data.sizes) else data.sizes[-1]


def _selection(kernel: KernelDescription, context: Context, data: TensorMeta) -> Estimate:
    """Radix selection reads the data once per 8 bits (L2 holds short rows), then sorts the k found."""
    passes = max(2, data.item_bytes)
    found = sum(t.logical_bytes for t in kernel.out_tensors)
    moved = data.stored_bytes * (1 + 0.5 * passes) + 4.0 * found
    return context.moved(moved, "sort", launches=3, scratch_bytes=2 * found)


def random(kernel: KernelDescription, context: Context) -> Estimate:
    """Philox kernels write (dropout: also read) each element once; permutations sort random keys."""
    name = kernel.base_name
    if name == "randperm":
        count = kernel.out_tensors[0].numel if kernel.out_tensors else 1
        passes = max(1, math.ceil(math.log2(max(count, 2)) * 2 / _RADIX_BITS))
        return context.moved(2.0 * 16 * count * passes, "sort", launches=passes + 4, scratch_bytes=count * 32)
    if name == "multinomial":
        return context.streamed(kernel, "random", launches=6)
    return context.streamed(kernel, "random")
