"""Which class an ATen operator belongs to, and which operators launch nothing at all.

The lists are in ``data/operators.json``: base names (no namespace, no overload, no in-place underscore) by
class, and
``none`` for views, metadata and allocation.
"""

from __future__ import annotations

import json
from functools import lru_cache
from importlib import resources

from phantom.kernels.predict.rules import library_rules
from phantom.kernels.request.description import KernelDescription, TensorMeta

CLASSES = (
    "gemm",
    "attention",
    "conv",
    "norm",
    "softmax",
    "elementwise",
    "reduction",
    "embedding",
    "optimizer",
    "copy",
    "index",
    "sort",
    "random",
    "triton",
    "other",
)
_NO_WORK_NAMESPACES = frozenset({"prim", "profiler", "c10d", "_c10d_functional", "c10d_functional"})


@lru_cache(maxsize=1)
def operators() -> dict[str, str]:
    """Return the class of every listed operator by base name (``none`` included).

    The first mention counts.
    """
    text = (resources.files("phantom.kernels") / "data" / "operators.json").read_text(encoding="utf-8")
    table: dict[str, str] = {}
    for klass, lines in json.loads(text).items():
        for line in lines:
            for name in line.split():
                table.setdefault(name, klass)
    return table


def class_of(kernel: KernelDescription) -> str:
    """Return the cost class of *kernel*, one of :data:`CLASSES`; ``other`` for what is not listed."""
    if library_rules.is_library_kernel(kernel):
        return library_rules.class_of(kernel)
    if kernel.namespace == "triton":
        return "triton"
    name = kernel.base_name
    klass = operators().get(name)
    if klass is not None:
        return klass if klass != "none" else "other"
    if name.startswith("_foreach_"):
        return "optimizer"
    return "elementwise" if name.startswith("special_") else "other"


def launches_nothing(kernel: KernelDescription) -> bool:
    """Say whether *kernel* runs no device work.

    Views, metadata, allocation, and operators on empty tensors only.
    """
    name = kernel.base_name
    if kernel.namespace == "aten" and operators().get(name) == "none":
        return True
    if kernel.namespace == "triton":
        return False
    if kernel.namespace in _NO_WORK_NAMESPACES:
        return True
    if kernel.namespace != "aten" and not kernel.in_tensors and not kernel.out_tensors:
        return True
    if (
        name in ("contiguous", "reshape", "to", "_lazy_clone")
        and kernel.out_tensors
        and _same_storage_layout(kernel)
    ):
        return True
    tensors = kernel.in_tensors + kernel.out_tensors
    return bool(tensors) and all(tensor.numel == 0 for tensor in tensors)


def _same_storage_layout(kernel: KernelDescription) -> bool:
    source, result = kernel.tensor(0), kernel.out_tensors[0]
    if not isinstance(source, TensorMeta):
        return False
    if kernel.base_name == "reshape":
        return source.layout == "c"
    return source == result
