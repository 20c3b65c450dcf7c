"""Readers of tables of matrix products."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from phantom.kernels.accuracy.checked_row import CheckedRow, SkippedRow
from phantom.kernels.calibrate.case_prices import gemm_case_s
from phantom.kernels.calibrate.published_rows import gemm_case
from phantom.kernels.gpu import GpuSpec, UnknownGpuError, gpu_by_name
from phantom.kernels.predict.constants import constants_for
from phantom.kernels.predict.products.gemm import GemmShape
from phantom.kernels.predict.rule_context import Context

_AIC_GPUS = {
    "a100_sxm": "a100", "h100_sxm": "h100", "h200_sxm": "h200", "b200_sxm": "b200", "b300_sxm": "b300",
    "gb200": "gb200", "gb300": "gb300", "l40s": "l40s", "rtx_pro_6000_server": "rtx-pro-6000", "l4": "l4",
    "h100_pcie": "h100-pcie", "a100_pcie": "a100-pcie",
}  # fmt: skip


@dataclass(frozen=True)
class _Format:
    """A row's data type: the product's, and the bytes that casting one element of the activations moves."""

    klass: str
    dtype: str
    in_bytes: float
    cast_bytes: float = 0.0


# TensorRT-LLM's, vLLM's and SGLang's fp8 and fp4 linear layers receive bf16 activations: they read 2 bytes
# and write 1 (or a half and the scales) before the product.
_AIC_FORMATS = {
    "bfloat16": _Format("bf16", "bfloat16", 2.0),
    "fp8": _Format("fp8", "float8_e4m3fn", 1.0, 3.0),
    "fp8_block": _Format("fp8 blockwise", "float8_e4m3fn", 1.0, 3.0 + 4.0 / 128),
    "nvfp4": _Format("nvfp4", "float4_e2m1fn_x2", 0.5, 2.5 + 1.0 / 16),
}


def _rows(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def _context(gpu: GpuSpec) -> Context:
    return Context(gpu, constants_for(gpu.architecture))


def _sized(name: str, m: int) -> str:
    return f"{name} products, m {'<' if m < 1024 else '>='} 1024"


def aic_gemm(path: Path) -> Iterator[CheckedRow | SkippedRow]:
    """Linear layers of serving libraries: a kernel that casts the activations if need be, and the product."""
    contexts: dict[str, Context] = {}
    for row in _rows(path):
        form, name = _AIC_FORMATS.get(row["gemm_dtype"]), _AIC_GPUS.get(row["system"])
        if form is None or name is None:
            yield SkippedRow(path.name, f"no model of {row['gemm_dtype'] if name else row['system']}")
            continue
        context = contexts.setdefault(name, _context(gpu_by_name(name)))
        m, n, k = (int(row[key]) for key in "mnk")
        shape = GemmShape(m, n, k, in_bytes=form.in_bytes, out_bytes=2.0)
        cost = context.product(shape, form.dtype, burst=True)
        if form.cast_bytes:
            cost += context.moved(m * k * form.cast_bytes, "copy")
        yield CheckedRow(
            table=path.name, gpu=context.gpu.name, klass=_sized(form.klass, m),
            what=f"{row['lib']} {m} x {n} x {k} {row['gemm_dtype']}", measured_s=float(row["time_us"]) * 1e-6,
            predicted_s=cost.seconds,
        )  # fmt: skip


_SIMUMAX_GPUS = {"B200-SXM-180GB": "b200", "A100-PCIe-80GB": "a100-pcie"}


def _settings(text: str) -> dict[str, str]:
    return dict(part.strip().split("=", 1) for part in text.split(","))


def _simumax_shape(op: str, s: Mapping[str, str]) -> tuple[str, GemmShape]:
    if op == "matmul":
        accumulates, out_bytes = s["accumulate"] == "True", 4.0 if s["out_dtype"] == "fp32" else 2.0
        shape = GemmShape(int(s["m"]), int(s["n"]), int(s["k"]), int(s["b"]), 2.0, out_bytes, s["layout"],
                          reads_c=accumulates)  # fmt: skip
        return ("bf16 products, weight gradients" if accumulates else "bf16 products"), shape
    groups, rows, n, k = (int(s[key]) for key in ("ng", "M", "N", "K"))
    if s["stage"] == "bwd_grad_w":  # TransformerEngine's: dW[n, k] = dY^T X, over the rows of each expert
        out_bytes = 4.0 if s["main_grad_dtype"] == "fp32" else 2.0
        shape = GemmShape(n, k, rows, groups, 2.0, out_bytes, "NT", reads_c=s["accumulate"] == "True",
                          grouped=True)  # fmt: skip
        return "bf16 grouped products, weight gradients", shape
    if s["stage"] == "bwd_grad_act":
        n, k = k, n
    shape = GemmShape(rows, n, k, groups, 2.0, 2.0, "TN" if s["stage"] == "fwd" else "NN", grouped=True)
    return "bf16 grouped products", shape


def simumax_products(path: Path) -> Iterator[CheckedRow | SkippedRow]:
    """Products and grouped products of training steps by layout and accumulation; time from the TFLOP/s."""
    for row in _rows(path):
        if row["op"] not in ("matmul", "group_matmul"):
            continue
        if row["gpu"] not in _SIMUMAX_GPUS:
            yield SkippedRow(path.name, f"no model of {row['gpu']}")
            continue
        context = _context(gpu_by_name(_SIMUMAX_GPUS[row["gpu"]]))
        klass, shape = _simumax_shape(row["op"], _settings(row["shape"]))
        yield CheckedRow(
            table=path.name, gpu=context.gpu.name, klass=klass, what=row["shape"],
            measured_s=shape.flops / (float(row["tflops"]) * 1e12),
            predicted_s=context.product(shape, "bfloat16", burst=True).seconds,
        )  # fmt: skip


def published_products(path: Path) -> Iterator[CheckedRow | SkippedRow]:
    """Products of many sources, as the page reads them."""
    for row in _rows(path):
        case = gemm_case(row)
        if case is None:
            yield SkippedRow(path.name, "shape, data type or GPU not stated, or the row holds fp8 casts")
            continue
        kind = "tuned or best shape" if case.best_case else "library"
        yield CheckedRow(
            table=path.name, gpu=case.gpu.name, klass=f"{case.dtype} products, {kind}", what=case.identity,
            measured_s=case.seconds, predicted_s=gemm_case_s(case, _context(case.gpu)),
        )  # fmt: skip


_TRACE_TYPES = {"c10::BFloat16": "bfloat16", "c10::Half": "float16", "float": "float32"}


def _trace_shape(op: str, dims: list[list[int]]) -> GemmShape | None:
    first = 1 if op == "aten::addmm" else 0
    if len(dims) < first + 2:
        return None
    a, b = dims[first], dims[first + 1]
    if op == "aten::bmm" and len(a) == len(b) == 3:
        return GemmShape(a[1], b[2], a[2], a[0])
    return GemmShape(a[0], b[1], a[1]) if len(a) == len(b) == 2 else None


def tracelens_products(path: Path) -> Iterator[CheckedRow | SkippedRow]:
    """Products of profiler traces: the kernel that a product launched, by the operator's input shapes."""
    for row in _rows(path):
        if row["op"] not in ("aten::mm", "aten::addmm", "aten::bmm"):
            continue
        types = [t for t in json.loads(row["input_types"]) if t in _TRACE_TYPES]
        shape = _trace_shape(row["op"], json.loads(row["input_dims"])) if types else None
        try:
            context = _context(gpu_by_name(row["gpu"]))
        except UnknownGpuError:
            shape = None
        if shape is None or "reduce" in row["kernel"].lower():
            yield SkippedRow(path.name, "a product of other types or forms, or the reduction of a split")
            continue
        yield CheckedRow(
            table=path.name, gpu=context.gpu.name, klass=_sized(_TRACE_TYPES[types[0]], shape.m),
            what=f"{row['op']} {row['input_dims']}", measured_s=float(row["median_us"]) * 1e-6,
            predicted_s=context.product(shape, _TRACE_TYPES[types[0]]).seconds,
        )  # fmt: skip
