"""Published kernel measurements, as cases that the predictor can be asked for.

``data/published_gemm.csv`` and ``data/published_kernels.csv`` hold the rows with their sources.  A case
belongs to the
fitting part or to the checking part by a hash of its shape, so that one shape never is in both.
"""

from __future__ import annotations

import csv
import re
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from importlib import resources

from phantom.kernels.gpu import GpuSpec, UnknownGpuError, gpu_by_name
from phantom.kernels.predict.fused_attention import AttentionShape
from phantom.kernels.predict.products.gemm import GemmShape


@dataclass(frozen=True)
class GemmCase:
    """One matrix product (or a sum of them) on one GPU: seconds as published."""

    identity: str
    gpu: GpuSpec
    dtype: str
    shapes: tuple[GemmShape, ...]
    seconds: float
    source: str
    best_case: bool
    """The source looked for the best shape, or tuned the kernel: not what a library call gives by default."""

    @property
    def is_fitting(self) -> bool:
        return _fits(";".join(f"{s.m},{s.n},{s.k}" for s in self.shapes))


@dataclass(frozen=True)
class AttentionCase:
    """One attention pass: seconds from the published TFLOP/s.

    *part*: ``forward``, ``backward`` or ``both`` together. *engine_call*: a profiler's span of a call of
    TransformerEngine's module, which holds the host's gaps between its kernels.
    """

    identity: str
    gpu: GpuSpec
    implementation: str
    part: str
    shape: AttentionShape
    seconds: float
    source: str
    engine_call: bool = False

    @property
    def is_fitting(self) -> bool:
        s = self.shape
        if self.engine_call:
            return _fits(f"{s.q_len},{s.heads},{s.kv_heads},{s.head_dim}")
        return _fits(f"{s.batch},{s.q_len},{s.heads},{s.head_dim},{s.causal}")


@dataclass(frozen=True)
class MemoryCase:
    """One kernel limited by memory: bytes read and written, seconds as published."""

    identity: str
    gpu: GpuSpec
    kind: str
    traffic_bytes: float
    seconds: float
    source: str

    @property
    def is_fitting(self) -> bool:
        return _fits(self.identity)


def _fits(text: str) -> bool:
    return zlib.crc32(text.encode()) % 2 == 0


def _rows(name: str) -> list[dict[str, str]]:
    text = (resources.files("phantom.kernels") / "data" / name).read_text(encoding="utf-8")
    return list(csv.DictReader(text.splitlines()))


_GEMM_GPUS = {
    "V100 SXM2 (DGX-1)": "v100", "P100": "p100", "T4": "t4", "NVIDIA A100 SXM": "a100",
    "NVIDIA A100 PCIe": "a100-pcie", "A100": "a100", "NVIDIA H100 SXM": "h100", "NVIDIA GH200 SXM": "gh200",
    "H100": "h100", "H800": "h800", "H200 NVL": "h200-nvl", "NVIDIA B200 SXM": "b200", "B200": "b200",
    "NVIDIA B300 SXM": "b300", "B300": "b300", "NVIDIA GB200 SXM": "gb200", "RTX 4090": "rtx-4090",
}  # fmt: skip
_LAYER_GEMMS = ((4096, 12288), (4096, 4096), (4096, 16384), (16384, 4096))


def _gemm_dtype(text: str) -> str | None:
    if text.startswith("fp16 in"):
        return "float16"
    if text.startswith("fp8"):
        return "float8_e4m3fn"
    return {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}.get(text)


def gemm_cases() -> list[GemmCase]:
    """Return the products whose shape, dtype and GPU are stated, less the fp8 ones that include casts."""
    return [case for row in _rows("published_gemm.csv") if (case := gemm_case(row)) is not None]


def gemm_case(row: dict[str, str]) -> GemmCase | None:
    """The product that a row describes; None where shape, dtype or GPU are not stated, or casts are in it."""
    gpu_name, dtype = _GEMM_GPUS.get(row["gpu"]), _gemm_dtype(row["dtype"])
    casts = (
        "including" in row["notes"]
        or "include casting" in row["notes"]
        or "quantize included" in row["method"]
    )
    if gpu_name is None or dtype is None or (casts and dtype.startswith("float8")):
        return None
    gpu = gpu_by_name(gpu_name)
    in_bytes = {"float32": 4.0, "float8_e4m3fn": 1.0}.get(dtype, 2.0)
    out_bytes = 4.0 if dtype == "float32" else 2.0
    backward = "fwd+bwd" in row["kind"]
    if row["kind"].startswith("sum of 4"):
        shapes = [GemmShape(15872, n, k, in_bytes=in_bytes, out_bytes=out_bytes) for k, n in _LAYER_GEMMS]
    elif row["m"] and row["n"] and row["k"]:
        m, n, k = int(row["m"]), int(row["n"]), int(row["k"])
        groups = int(row["groups"] or 1)
        if groups > 1 and ("fwd+bwd" in row["kind"] or row["kind"] == "grouped gemm"):
            m = m // groups  # the source's m is the total
        layout = row["layout"] if row["layout"] in ("NN", "NT", "TN", "TT") else "TN"
        # DeepBench is column-major: the leading dimensions are m and k there, n and k elsewhere.
        leading = (m, k) if row["method"].startswith("DeepBench") else (n, k)
        aligned = dtype == "float32" or all(x * in_bytes % 16 == 0 for x in leading)
        grouped = "grouped" in row["kind"] and "DeepGEMM" not in row["library"]
        first = GemmShape(m, n, k, groups, in_bytes, out_bytes, layout, aligned=aligned, grouped=grouped)
        shapes = [first]
        if backward:
            shapes += [replace(first, n=k, k=n), replace(first, m=n, n=k, k=m)]
    else:
        return None
    flops = sum(shape.flops for shape in shapes)
    if row["time_us"]:
        seconds = float(row["time_us"]) * 1e-6
    elif row["tflops"]:
        seconds = flops / (float(row["tflops"]) * 1e12)
    else:
        return None
    best = any(
        mark in row["method"] + row["library"]
        for mark in ("best shape", "DeepGEMM", "max-autotune", "IREE", "NVCC")
    )
    return GemmCase(row["id"], gpu, dtype, tuple(shapes), seconds, _source(row), best)


def _source(row: dict[str, str]) -> str:
    words = row["source"].split()
    return " ".join(words[:2]) if words else ""


_IMPLEMENTATIONS = {
    "FlashAttention-2": "flash", "FlashAttention-3": "flash3", "cuDNN": "cudnn", "xformers cutlass":
    "efficient",
    "PyTorch": "math", "Standard": "math", "Triton": "triton", "FlashAttention Triton": "triton",
    "FlashAttention-1": "flash1",
}  # fmt: skip


def attention_cases() -> list[AttentionCase]:
    """Return the attention rows with implementation, shape and TFLOP/s."""
    cases = []
    for row in _rows("published_kernels.csv"):
        implementation = _IMPLEMENTATIONS.get(row["impl"])
        if row["kernel"] != "attention" or implementation is None or not row["tflops"] or not row["seq"]:
            continue
        batch, length, heads, head_dim = (int(row[c]) for c in ("batch", "seq", "heads", "head_dim"))
        shape = AttentionShape(
            batch, heads, heads, length, length, head_dim, head_dim, row["causal"] == "yes", False,
            "float16", False
        )  # fmt: skip
        forward_only = row["pass"] == "fwd"
        flops = shape.flops * (1.0 if forward_only else 3.5)
        gpu = gpu_by_name("a100" if row["gpu"].startswith("A100") else "h100")
        seconds = flops / (float(row["tflops"]) * 1e12)
        part = "forward" if forward_only else "both"
        cases.append(AttentionCase(row["id"], gpu, implementation, part, shape, seconds, _source(row)))
    return cases + [te_attention_case(row) for row in _rows("published_te_attention.csv")]


def te_attention_case(row: Mapping[str, str]) -> AttentionCase:
    """A call of TransformerEngine's attention: causal, though its TFLOP/s count the whole square.

    Which kernels: cuDNN on Blackwell and for MLA's heads of 192 and 128, else FlashAttention-2.
    """
    batch, seq, heads, kv_heads, qk_dim, v_dim = (
        int(row[c]) for c in ("batch", "seq", "heads", "kv_heads", "qk_dim", "v_dim")
    )
    gpu, backward = gpu_by_name(row["gpu"]), row["pass"] == "bwd"
    shape = AttentionShape(
        batch, heads, kv_heads, seq, seq, qk_dim, v_dim, True, False, "bfloat16", backward
    )  # fmt: skip
    unmasked = 2.0 * batch * seq * seq * heads * (qk_dim + v_dim) * (2.5 if backward else 1.0)
    implementation = "cudnn" if gpu.architecture == "blackwell" or qk_dim != v_dim else "flash"
    return AttentionCase(
        row["id"], gpu, implementation, "backward" if backward else "forward", shape,
        unmasked / (float(row["tflops_unmasked"]) * 1e12), row["source"], engine_call=True,
    )  # fmt: skip


def memory_cases() -> list[MemoryCase]:
    """Return the memory-bound rows whose bytes and GPU are known."""
    return list(_memory_cases())


def _memory_cases() -> Iterator[MemoryCase]:
    for row in _rows("published_kernels.csv"):
        gpu = _memory_gpu(row["gpu"])
        if gpu is None or row["kernel"].startswith(("attention", "step", "sum of", "overlap")):
            continue
        if "memcpy" in row["kernel"]:
            size = float(row["shape"].split()[0])
            yield MemoryCase(
                row["id"], gpu, "copy by size", 2 * size, float(row["time_us"]) * 1e-6, _source(row)
            )
        elif "copy" in row["kernel"] and row["gb_per_s"]:
            # The size is not stated ("large"): the rate of 1 GiB.
            traffic = float(2 << 30)
            yield MemoryCase(
                row["id"], gpu, "large copy", traffic, traffic / (float(row["gb_per_s"]) * 1e9), _source(row)
            )
        elif row["kernel"].startswith("quantize") and row["gb_per_s"] and row["time_us"]:
            seconds = float(row["time_us"]) * 1e-6
            yield MemoryCase(
                row["id"], gpu, "quantize", float(row["gb_per_s"]) * 1e9 * seconds, seconds, _source(row)
            )


def _memory_gpu(name: str) -> GpuSpec | None:
    plain = re.sub(r"\s*\(.*\)$", "", name)
    try:
        return gpu_by_name(plain)
    except UnknownGpuError:
        return None


def training_rows() -> list[dict[str, str]]:
    """Return the committed third of llm-foundry's 8-GPU rows used for fitting.

    Rows without recompute, at most 2,048 tokens and 3B parameters (larger models wait for FSDP with these
    micro-batches);
    lf0121 is left out: half the rate of its neighbours.

    These rows must not be used for checking: ``data/training_fit_rows.csv``.
    """
    return _rows("training_fit_rows.csv")
