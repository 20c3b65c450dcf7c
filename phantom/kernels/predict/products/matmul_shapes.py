"""Reads the shape of a matrix product from the arguments of ATen's GEMM-like operators."""

from __future__ import annotations

import math

from phantom.kernels.predict.products.gemm import GemmShape
from phantom.kernels.request.description import KernelDescription, TensorMeta

# op -> (index of A, index of B, index of C or None); A is [.., m, k], B is [.., k, n]
_PRODUCTS: dict[str, tuple[int, int, int | None]] = {
    "mm": (0, 1, None), "bmm": (0, 1, None), "matmul": (0, 1, None), "addmm": (1, 2, 0), "baddbmm": (1, 2,
    0), "addbmm": (1, 2, 0),
    "_addmm_activation": (1, 2, 0), "_int_mm": (0, 1, None), "_scaled_mm": (0, 1, None), "_scaled_mm_v2":
    (0, 1, None),
    "mv": (0, 1, None), "addmv": (1, 2, 0), "dot": (0, 1, None), "vdot": (0, 1, None), "_sparse_mm": (0, 1,
    None),
    "_sparse_addmm": (1, 2, 0), "linalg_matmul": (0, 1, None), "wgrad_accumulate": (0, 1, 2),
}  # fmt: skip


def matmul_shapes(kernel: KernelDescription) -> list[tuple[GemmShape, str]] | None:
    """Return the products that *kernel* computes, each with the dtype of its inputs; None if it is not a
    plain product.

    For a grouped product whose offsets are data the groups are taken as equal.
    """
    name = kernel.base_name
    if name in ("_grouped_mm", "_scaled_grouped_mm", "_scaled_grouped_mm_v2"):
        return [_grouped(kernel)]
    if name == "linear":
        return [_linear(kernel)]
    if name == "linear_backward":
        data, _grad, weight = (kernel.need_tensor(i) for i in range(3))
        rows, out_features, in_features = math.prod(data.sizes[:-1]), weight.sizes[0], weight.sizes[1]
        item = data.item_bytes
        return [
            (GemmShape(rows, in_features, out_features, in_bytes=item, out_bytes=item), data.dtype),
            (GemmShape(out_features, in_features, rows, in_bytes=item, out_bytes=item), data.dtype),
        ]
    if name == "_foreach_mm":
        first, second = kernel.args[0], kernel.args[1]
        pairs = zip(first.tensors(), second.tensors())  # type: ignore[union-attr]
        return [(_product(a, b, None, None), a.dtype) for a, b in pairs]
    if name == "grouped_gemm":
        return [_grouped_lists(kernel)]
    if name in ("addr", "ger", "outer"):
        return None
    if name not in _PRODUCTS:
        return None
    a_index, b_index, c_index = _PRODUCTS[name]
    a, b = kernel.need_tensor(a_index), kernel.need_tensor(b_index)
    c = kernel.tensor(c_index) if c_index is not None else None
    out = kernel.out_tensors[0] if kernel.out_tensors else None
    if name == "wgrad_accumulate":
        out = c  # C is updated in place
    return [(_product(a, b, c, out), a.dtype)]


def product_scaling(kernel: KernelDescription) -> str:
    """Return how an fp8 product is scaled: "block" with fp32 scales along the inner dimension, else ""."""
    if kernel.base_name not in ("_scaled_mm", "_scaled_mm_v2"):
        return ""
    rows = kernel.need_tensor(0).sizes[0]
    scales = [t for t in kernel.in_tensors[2:] if t.dtype == "float32"]
    return "block" if scales and scales[0].numel > rows else ""


def _letters(a: TensorMeta, b: TensorMeta) -> str:
    """cuBLAS's letters for row-major A B, which it computes as B^T A^T in column-major order."""
    first = "T" if b.layout in ("t", "d") else "N"
    second = "T" if a.layout in ("t", "d") else "N"
    return first + second


def _is_aligned(*tensors: TensorMeta) -> bool:
    """cuBLAS's fast tensor-core kernels want leading dimensions that are multiples of 16 bytes."""
    for tensor in tensors:
        if len(tensor.sizes) < 2:
            continue
        lead = tensor.sizes[-2] if tensor.layout in ("t", "d") else tensor.sizes[-1]
        if lead * tensor.item_bytes % 16:
            return False
    return True


def _product(a: TensorMeta, b: TensorMeta, c: TensorMeta | None, out: TensorMeta | None) -> GemmShape:
    m = a.sizes[-2] if len(a.sizes) >= 2 else 1
    k = a.sizes[-1] if a.sizes else 1
    n = b.sizes[-1] if len(b.sizes) >= 2 else 1
    batch = (
        max(math.prod(a.sizes[:-2]), math.prod(b.sizes[:-2])) if max(len(a.sizes), len(b.sizes)) > 2 else 1
    )
    if len(b.sizes) == 2 and len(a.sizes) > 2:
        m, batch = m * batch, 1
    out_bytes = out.item_bytes if out is not None else a.item_bytes
    # A bias row is an epilogue; a full C is read.
    reads_c = c is not None and c.stored_bytes >= m * n * batch * c.item_bytes
    return GemmShape(
        m, n, k, batch=batch, in_bytes=a.item_bytes, out_bytes=out_bytes,
        layout=_letters(a, b), reads_c=reads_c, aligned=_is_aligned(a, b),
    )  # fmt: skip


def _linear(kernel: KernelDescription) -> tuple[GemmShape, str]:
    data, weight = kernel.need_tensor(0), kernel.need_tensor(1)
    rows = math.prod(data.sizes[:-1])
    n = weight.sizes[0] if len(weight.sizes) == 2 else 1
    shape = GemmShape(
        rows, n, data.sizes[-1], in_bytes=data.item_bytes, out_bytes=data.item_bytes, layout="TN",
        aligned=_is_aligned(data, weight),
    )  # fmt: skip
    return shape, data.dtype


def _grouped_lists(kernel: KernelDescription) -> tuple[GemmShape, str]:
    """Lists of A, B and C, each group with its rows; n and k are taken at their mean."""
    a, b, c = (argument.tensors() for argument in kernel.args[:3])  # type: ignore[union-attr]
    groups = len(a)
    rows = tuple(t.sizes[0] for t in a)
    m, k = (math.ceil(sum(t.sizes[i] for t in a) / groups) for i in (0, 1))
    n = math.ceil(sum(t.sizes[1] for t in b) / groups)
    return GemmShape(
        m, n, k, batch=groups, in_bytes=a[0].item_bytes, out_bytes=c[0].item_bytes,
        layout=_letters(a[0], b[0]), grouped=True, separate=True,
        group_rows=rows if len(set(rows)) > 1 else (),
    ), a[0].dtype  # fmt: skip


def _grouped(kernel: KernelDescription) -> tuple[GemmShape, str]:
    a, b = kernel.need_tensor(0), kernel.need_tensor(1)
    offsets = next((t for t in kernel.in_tensors[2:] if t.dtype == "int32" and len(t.sizes) == 1), None)
    groups = offsets.numel if offsets is not None else 1
    out_bytes = kernel.out_tensors[0].item_bytes if kernel.out_tensors else 2
    item = a.item_bytes
    if len(a.sizes) == 2 and len(b.sizes) == 3:  # rows are grouped
        groups = b.sizes[0]
        m, n, k = math.ceil(a.sizes[0] / max(groups, 1)), b.sizes[2], a.sizes[1]
    elif len(a.sizes) == 3 and len(b.sizes) == 2:  # columns are grouped
        groups = a.sizes[0]
        m, n, k = a.sizes[1], math.ceil(b.sizes[1] / max(groups, 1)), a.sizes[2]
    elif len(a.sizes) == 2:  # the inner dimension is grouped (weight gradients)
        m, n, k = a.sizes[0], b.sizes[1], math.ceil(a.sizes[1] / max(groups, 1))
    else:
        groups = a.sizes[0]
        m, n, k = a.sizes[1], b.sizes[2], a.sizes[2]
    return GemmShape(
        m, n, k, batch=groups, in_bytes=item, out_bytes=out_bytes, layout=_letters(a, b), grouped=True
    ), a.dtype
