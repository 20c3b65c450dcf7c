"""Reader of a table of profiler traces: kernels bound by memory, by the operator's input shapes.

Strides and scalars are not in the table: tensors are taken as contiguous, scalars as absent.
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from phantom.kernels.accuracy.checked_row import CheckedRow, SkippedRow
from phantom.kernels.gpu import UnknownGpuError, gpu_by_name
from phantom.kernels.predict.operator_classes import class_of
from phantom.kernels.predict.predictor import Predictor
from phantom.kernels.request.description import KernelDescription, TensorList, TensorMeta, contiguous

_TYPES = {
    "c10::BFloat16": "bfloat16", "c10::Half": "float16", "float": "float32", "double": "float64",
    "bool": "bool", "int": "int32", "long int": "int64", "unsigned char": "uint8",
}  # fmt: skip
_POINTWISE = frozenset({"add", "add_", "mul", "div", "neg", "gelu", "copy_", "fill_", "masked_fill_"})
_SAME_SIZE = frozenset({"native_layer_norm", "_softmax"})


def tracelens_memory(path: Path) -> Iterator[CheckedRow | SkippedRow]:
    """Pointwise kernels, copies, concatenation, normalisation, softmax; products have their own reader."""
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    for row in rows:
        namespace, _, name = row["op"].partition("::")
        if name in ("mm", "addmm", "bmm"):
            continue
        kernel = _kernel(name, json.loads(row["input_dims"]), json.loads(row["input_types"]))
        try:
            gpu = gpu_by_name(row["gpu"])
        except UnknownGpuError:
            kernel = None
        if namespace != "aten" or kernel is None:
            yield SkippedRow(path.name, f"{row['op']}: its work does not follow from its shapes")
            continue
        estimate = Predictor(gpu).estimate(kernel)
        assert estimate is not None
        moved = sum(t.numel * t.item_bytes for t in (*kernel.in_tensors, *kernel.out_tensors))
        yield CheckedRow(
            table=path.name, gpu=gpu.name,
            klass=f"{class_of(kernel)}, {'below' if moved < 2**20 else 'from'} 1 MiB",
            what=f"{row['op']} {row['input_dims']}", measured_s=float(row["median_us"]) * 1e-6,
            predicted_s=estimate.seconds,
        )  # fmt: skip


def _kernel(name: str, dims: Sequence[Any], types: Sequence[str]) -> KernelDescription | None:
    arguments: list[Any] = []
    for sizes, kind in zip(dims, types):
        if kind == "TensorList":
            arguments.append(TensorList(tuple(contiguous("bfloat16", *one) for one in sizes)))
        else:
            arguments.append(contiguous(_TYPES[kind], *sizes) if kind in _TYPES else None)
    tensors = [a for a in arguments if isinstance(a, TensorMeta)]
    out: TensorMeta
    if name == "cat" and isinstance(arguments[0], TensorList):
        parts = [t.sizes for t in arguments[0].tensors()]
        axis = next((i for i, sizes in enumerate(zip(*parts)) if len(set(sizes)) > 1), 0)
        sizes = list(parts[0])
        sizes[axis] = sum(part[axis] for part in parts)
        out = contiguous("bfloat16", *sizes)
    elif name in _POINTWISE and tensors:
        largest = max(tensors, key=lambda t: math.prod(t.sizes))
        out = tensors[0] if name.endswith("_") else contiguous(tensors[0].dtype, *largest.sizes)
    elif name in _SAME_SIZE and tensors:
        out = tensors[0]
    else:
        return None
    return KernelDescription(f"aten::{name}", tuple(arguments), (out,))
