"""Readers of tables of matrix products."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path

from phantom.kernels.accuracy.checked_row import CheckedRow, SkippedRow
from phantom.kernels.calibrate.case_prices import gemm_case_s
from phantom.kernels.calibrate.product_rows import ProductCase, read_rows, serving_case, training_case
from phantom.kernels.calibrate.published_rows import gemm_case
from phantom.kernels.gpu import GpuSpec, UnknownGpuError, gpu_by_name
from phantom.kernels.predict.constants import constants_for
from phantom.kernels.predict.products.gemm import GemmShape
from phantom.kernels.predict.rule_context import Context


@cache
def context_of(gpu: GpuSpec) -> Context:
    """Return the context that prices kernels of *gpu*; one per GPU, so that it remembers shapes."""
    return Context(gpu, constants_for(gpu.architecture))


def _checked(
    path: Path, rows: list[dict[str, str]], case_of: Callable[[Mapping[str, str]], ProductCase | str]
) -> Iterator[CheckedRow | SkippedRow]:
    for row in rows:
        case = case_of(row)
        if isinstance(case, str):
            yield SkippedRow(path.name, case)
        else:
            yield CheckedRow(
                table=path.name, gpu=case.gpu.name, klass=case.klass, what=case.what,
                measured_s=case.seconds, predicted_s=case.price_s(context_of(case.gpu)),
            )  # fmt: skip


def serving_products(path: Path) -> Iterator[CheckedRow | SkippedRow]:
    """Linear layers of serving libraries: a kernel that casts the activations if need be, and the product."""
    yield from _checked(path, read_rows(path), serving_case)


def training_products(path: Path) -> Iterator[CheckedRow | SkippedRow]:
    """Products and grouped products of training steps, by layout and accumulation."""
    rows = [row for row in read_rows(path) if row["op"] in ("matmul", "group_matmul")]
    yield from _checked(path, rows, training_case)


def published_products(path: Path) -> Iterator[CheckedRow | SkippedRow]:
    """Products of many sources, as the page reads them."""
    for row in read_rows(path):
        case = gemm_case(row)
        if case is None:
            yield SkippedRow(path.name, "shape, data type or GPU not stated, or the row holds fp8 casts")
            continue
        kind = "tuned or best shape" if case.best_case else "library"
        yield CheckedRow(
            table=path.name, gpu=case.gpu.name, klass=f"{case.dtype} products, {kind}", what=case.identity,
            measured_s=case.seconds, predicted_s=gemm_case_s(case, context_of(case.gpu)),
        )  # fmt: skip


_TRACE_TYPES = {"c10::BFloat16": "bfloat16", "c10::Half": "float16", "float": "float32"}


def _trace_shape(op: str, dims: list[list[int]], in_bytes: float) -> GemmShape | None:
    first = 1 if op == "aten::addmm" else 0
    if len(dims) < first + 2:
        return None
    a, b = dims[first], dims[first + 1]
    if op == "aten::bmm" and len(a) == len(b) == 3:
        return GemmShape(a[1], b[2], a[2], a[0], in_bytes, in_bytes)
    if len(a) != 2 or len(b) != 2:
        return None
    return GemmShape(a[0], b[1], a[1], 1, in_bytes, in_bytes)


def traced_products(path: Path) -> Iterator[CheckedRow | SkippedRow]:
    """Products of profiler traces: the kernel that a product launched, by the operator's input shapes."""
    for row in read_rows(path):
        if row["op"] not in ("aten::mm", "aten::addmm", "aten::bmm"):
            continue
        types = [_TRACE_TYPES[t] for t in json.loads(row["input_types"]) if t in _TRACE_TYPES]
        try:
            gpu = gpu_by_name(row["gpu"])
        except UnknownGpuError:
            yield SkippedRow(path.name, f"no model of {row['gpu']}")
            continue
        in_bytes = 4.0 if types[:1] == ["float32"] else 2.0
        shape = _trace_shape(row["op"], json.loads(row["input_dims"]), in_bytes) if types else None
        if shape is None or "reduce" in row["kernel"].lower():
            yield SkippedRow(path.name, "a product of other types or forms, or the reduction of a split")
            continue
        size = "m < 1024" if shape.m < 1024 else "m >= 1024"
        yield CheckedRow(
            table=path.name, gpu=gpu.name, klass=f"{types[0]} products, {size}",
            what=f"{row['op']} {row['input_dims']}", measured_s=float(row["median_us"]) * 1e-6,
            predicted_s=context_of(gpu).product(shape, types[0]).seconds,
        )  # fmt: skip
