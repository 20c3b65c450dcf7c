"""Tables of matrix products as cases: serving libraries' linear layers, and products of training steps.

``data/serving_products.csv.gz`` and ``data/training_products.csv.gz`` ship; other files of the same columns
can be read. A configuration (n and k, or the sizes of a training product in any order) is for fitting or is
left out, whole, by a hash.
"""

from __future__ import annotations

import csv
import gzip
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from phantom.kernels.gpu import GpuSpec, gpu_by_name
from phantom.kernels.predict.products.gemm import GemmShape
from phantom.kernels.predict.rule_context import Context

_SERVING_GPUS = {
    "a100_sxm": "a100", "h100_sxm": "h100", "h200_sxm": "h200", "b200_sxm": "b200", "b300_sxm": "b300",
    "gb200": "gb200", "gb300": "gb300", "l40s": "l40s", "rtx_pro_6000_server": "rtx-pro-6000", "l4": "l4",
    "h100_pcie": "h100-pcie", "a100_pcie": "a100-pcie",
}  # fmt: skip
_TRAINING_GPUS = {"B200-SXM-180GB": "b200", "A100-PCIe-80GB": "a100-pcie"}


@dataclass(frozen=True, kw_only=True)
class Format:
    """A data type of a linear layer: its name here, torch's dtype, bytes per element, scaling."""

    klass: str
    dtype: str
    in_bytes: float
    scaling: str = ""
    casts: bool = True


FORMATS = {
    "bfloat16": Format(klass="bf16", dtype="bfloat16", in_bytes=2.0, casts=False),
    "fp8": Format(klass="fp8", dtype="float8_e4m3fn", in_bytes=1.0),
    "fp8_block": Format(klass="fp8 blockwise", dtype="float8_e4m3fn", in_bytes=1.0, scaling="block"),
    "nvfp4": Format(klass="nvfp4", dtype="float4_e2m1fn_x2", in_bytes=0.5),
}
"""By the name that the serving table uses."""


@dataclass(frozen=True, kw_only=True)
class ProductCase:
    """One measured product: seconds, and whether it is a benchmark's (*burst*) or at a training step's clock.

    *library* and *form* say which kernel cast the activations first, if one did: the seconds hold it.
    """

    gpu: GpuSpec
    klass: str
    what: str
    shape: GemmShape
    dtype: str
    seconds: float
    burst: bool
    configuration: str
    scaling: str = ""
    library: str = ""
    form: str = ""

    @property
    def is_fitting(self) -> bool:
        """Two configurations of three are for fitting."""
        return zlib.crc32(self.configuration.encode()) % 3 != 0

    def price_s(self, context: Context) -> float:
        """Return the predicted seconds: the product, and the cast where the row holds it."""
        cost = context.product(self.shape, self.dtype, burst=self.burst, scaling=self.scaling)
        if self.form:
            cost += context.cast(self.shape.m * self.shape.k, self.library, self.form)
        return cost.seconds


def read_rows(path: Path) -> list[dict[str, str]]:
    """Return the rows of a CSV file, compressed by gzip or not."""
    data = path.read_bytes()
    text = (gzip.decompress(data) if path.suffix == ".gz" else data).decode("utf-8")
    return list(csv.DictReader(text.splitlines()))


def serving_case(row: Mapping[str, str]) -> ProductCase | str:
    """Return a row of the serving table as a case, or why it cannot be."""
    form, gpu = FORMATS.get(row["gemm_dtype"]), _SERVING_GPUS.get(row["system"])
    if form is None or gpu is None:
        return f"no model of {row['gemm_dtype'] if form is None else row['system']}"
    if row["lib"] == "vllm" and row["gemm_dtype"] == "fp8_block":
        return "no model of vLLM's Triton kernel for blockwise fp8"
    m, n, k = (int(row[key]) for key in "mnk")
    return ProductCase(
        gpu=gpu_by_name(gpu),
        klass=f"{form.klass} products, m {'<' if m < 1024 else '>='} 1024",
        what=f"{row['lib']} {m} x {n} x {k} {row['gemm_dtype']}",
        shape=GemmShape(m, n, k, in_bytes=form.in_bytes, out_bytes=2.0),
        dtype=form.dtype,
        scaling=form.scaling,
        seconds=float(row["time_us"]) * 1e-6,
        burst=True,
        configuration=f"{n}x{k}",
        library=row["lib"],
        form=row["gemm_dtype"] if form.casts else "",
    )


def training_case(row: Mapping[str, str]) -> ProductCase | str:
    """Return a product of the training table as a case (seconds from its TFLOP/s), or why it cannot be."""
    if row["gpu"] not in _TRAINING_GPUS:
        return f"no model of {row['gpu']}"
    settings = dict(part.strip().split("=", 1) for part in row["shape"].split(","))
    klass, shape = _training_shape(row["op"], settings)
    return ProductCase(
        gpu=gpu_by_name(_TRAINING_GPUS[row["gpu"]]),
        klass=klass,
        what=row["shape"],
        shape=shape,
        dtype="bfloat16",
        seconds=shape.flops / (float(row["tflops"]) * 1e12),
        burst=False,
        configuration="x".join(str(size) for size in sorted((shape.batch, shape.m, shape.n, shape.k))),
    )


def _training_shape(op: str, s: Mapping[str, str]) -> tuple[str, GemmShape]:
    if op == "matmul":
        accumulates, out_bytes = s["accumulate"] == "True", 4.0 if s["out_dtype"] == "fp32" else 2.0
        shape = GemmShape(
            int(s["m"]), int(s["n"]), int(s["k"]), int(s["b"]), 2.0, out_bytes, s["layout"],
            reads_c=accumulates,
        )  # fmt: skip
        return ("bf16 products, weight gradients" if accumulates else "bf16 products"), shape
    groups, rows, n, k = (int(s[key]) for key in ("ng", "M", "N", "K"))
    if s["stage"] == "bwd_grad_w":  # dW[n, k] = dY^T X over the rows of each expert
        out_bytes = 4.0 if s["main_grad_dtype"] == "fp32" else 2.0
        shape = GemmShape(
            n,
            k,
            rows,
            groups,
            2.0,
            out_bytes,
            "NT",
            reads_c=s["accumulate"] == "True",
            grouped=True,
            separate=True,
        )
        return "bf16 grouped products, weight gradients", shape
    if s["stage"] == "bwd_grad_act":
        n, k = k, n
    layout = "TN" if s["stage"] == "fwd" else "NN"
    return "bf16 grouped products", GemmShape(
        rows, n, k, groups, 2.0, 2.0, layout, grouped=True, separate=True
    )


def _cases(found: Iterable[ProductCase | str]) -> list[ProductCase]:
    return [case for case in found if isinstance(case, ProductCase)]


def _shipped(name: str) -> list[dict[str, str]]:
    with resources.as_file(resources.files("phantom.kernels") / "data" / name) as path:
        return read_rows(path)


def serving_cases() -> list[ProductCase]:
    """Return the cases of the serving table that ships."""
    return _cases(serving_case(row) for row in _shipped("serving_products.csv.gz"))


def training_cases() -> list[ProductCase]:
    """Return the cases of the training table that ships."""
    return _cases(training_case(row) for row in _shipped("training_products.csv.gz"))
