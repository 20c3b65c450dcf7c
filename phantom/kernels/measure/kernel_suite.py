"""Common kernels of transformer and CNN training, to fill a store without a job at hand."""

from __future__ import annotations

from phantom.kernels.request.description import IntList, KernelDescription, TensorMeta, contiguous, transposed

SUITES = ("small", "transformer")
"""``small`` takes seconds on a CPU core; ``transformer`` has shapes of 1B to 70B models, for a GPU."""


def suite(name: str, *, dtype: str | None = None) -> list[KernelDescription]:
    """Return the kernels of suite *name* in *dtype* (default: float32 small, bfloat16 transformer).

    Raises ValueError for an unknown name.
    """
    if name == "small":
        return _kernels(dtype or "float32", rows=(64, 256), widths=(128, 512), heads=4, lengths=(64, 256))
    if name == "transformer":
        return _kernels(
            dtype or "bfloat16", rows=(2048, 8192), widths=(2048, 4096, 8192), heads=32,
            lengths=(2048, 4096, 8192),
        )  # fmt: skip
    raise ValueError(f"no suite {name!r}; known: {', '.join(SUITES)}")


def _kernels(
    dtype: str, *, rows: tuple[int, ...], widths: tuple[int, ...], heads: int, lengths: tuple[int, ...]
) -> list[KernelDescription]:
    found: list[KernelDescription] = []
    for m in rows:
        for width in widths:
            found += _layer(dtype, m, width)
    for length in lengths:
        for causal in (False, True):
            found.append(_attention(dtype, heads, length, causal))
    return found


def _layer(dtype: str, m: int, width: int) -> list[KernelDescription]:
    x = contiguous(dtype, m, width)
    weight = contiguous(dtype, width)
    rows = contiguous("float32", m, 1)
    products = [
        KernelDescription(
            "aten::mm", (contiguous(dtype, m, k), transposed(dtype, k, n)), (contiguous(dtype, m, n),)
        )
        for n, k in ((width, width), (4 * width, width), (width, 4 * width))
    ]
    return [
        *products,
        KernelDescription("aten::add.Tensor", (x, x, 1), (x,)),
        KernelDescription("aten::mul.Tensor", (x, x), (x,)),
        KernelDescription("aten::gelu", (x, "none"), (x,)),
        KernelDescription("aten::silu", (x,), (x,)),
        KernelDescription("aten::_softmax", (x, -1, False), (x,)),
        KernelDescription("aten::sum.dim_IntList", (x, IntList((0,)), True, None),
                          (contiguous(dtype, 1, width),)),
        KernelDescription(
            "aten::native_layer_norm", (x, IntList((width,)), weight, weight, 1e-5), (x, rows, rows)
        ),
        KernelDescription("aten::_to_copy", (x, 6), (contiguous("float32", m, width),)),
    ]  # fmt: skip


def _attention(dtype: str, heads: int, length: int, causal: bool) -> KernelDescription:
    q = contiguous(dtype, 1, heads, length, 64)
    sums: TensorMeta = contiguous("float32", 1, heads, length)
    return KernelDescription(
        "aten::_scaled_dot_product_flash_attention", (q, q, q, 0.0, causal, False, None), (q, sums)
    )
