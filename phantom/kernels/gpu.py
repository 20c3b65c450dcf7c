"""The facts about a GPU that predictions use, and the list of GPUs known by name."""

from __future__ import annotations

import csv
import difflib
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources

GIB = 1 << 30
MIB = 1 << 20


class UnknownGpuError(ValueError):
    """No GPU of that name is known; the text lists the names that are."""


@dataclass(frozen=True, kw_only=True)
class GpuSpec:
    """Datasheet facts of one GPU: rates in FLOP/s and bytes/s, sizes in bytes, clock in Hz.

    Peaks are dense tensor-core rates where the GPU has tensor cores for the type; a type without hardware has
    the rate of the type it is computed in.
    """

    name: str
    architecture: str
    capability: tuple[int, int]
    sm_count: int
    boost_clock_hz: float
    memory_bytes: int
    memory_bytes_per_s: float
    l2_bytes: int
    fp64_flops_per_s: float
    fp32_flops_per_s: float
    tf32_flops_per_s: float
    fp16_flops_per_s: float
    bf16_flops_per_s: float
    fp8_flops_per_s: float
    fp4_flops_per_s: float
    int8_ops_per_s: float
    pcie_bytes_per_s: float
    aliases: tuple[str, ...] = ()

    def peak_flops_per_s(self, math_class: str) -> float:
        """Return the dense peak of *math_class* (fp64, fp32, tf32, fp16, bf16, fp8, fp4 or int8)."""
        if math_class == "int8":
            return self.int8_ops_per_s
        rate: float = getattr(self, f"{math_class}_flops_per_s")
        return rate

    @property
    def is_cpu(self) -> bool:
        return self.architecture == "cpu"


def _normal(name: str) -> str:
    return "".join(c for c in name.lower() if c.isalnum())


def _spec(row: dict[str, str]) -> GpuSpec:
    def tera(column: str) -> float:
        return float(row[column]) * 1e12

    return GpuSpec(
        name=row["name"],
        architecture=row["architecture"],
        capability=(int(row["major"]), int(row["minor"])),
        sm_count=int(row["sm_count"]),
        boost_clock_hz=float(row["boost_mhz"]) * 1e6,
        memory_bytes=int(float(row["memory_gib"]) * GIB),
        memory_bytes_per_s=float(row["memory_gb_per_s"]) * 1e9,
        l2_bytes=int(float(row["l2_mib"]) * MIB),
        fp64_flops_per_s=tera("fp64_tflops"),
        fp32_flops_per_s=tera("fp32_tflops"),
        tf32_flops_per_s=tera("tf32_tflops"),
        fp16_flops_per_s=tera("fp16_tflops"),
        bf16_flops_per_s=tera("bf16_tflops"),
        fp8_flops_per_s=tera("fp8_tflops"),
        fp4_flops_per_s=tera("fp4_tflops"),
        int8_ops_per_s=tera("int8_tops"),
        pcie_bytes_per_s=float(row["pcie_gb_per_s"]) * 1e9,
        aliases=tuple(row["aliases"].split("|")),
    )


@lru_cache(maxsize=1)
def known_gpus() -> tuple[GpuSpec, ...]:
    """Return every GPU of ``data/gpus.csv``, in the file's order."""
    text = (resources.files("phantom.kernels") / "data" / "gpus.csv").read_text(encoding="utf-8")
    return tuple(_spec(row) for row in csv.DictReader(text.splitlines()))


@lru_cache(maxsize=1)
def _by_name() -> dict[str, GpuSpec]:
    table: dict[str, GpuSpec] = {}
    for gpu in known_gpus():
        for name in (gpu.name, *gpu.aliases):
            table.setdefault(_normal(name), gpu)
    return table


def gpu_by_name(name: str) -> GpuSpec:
    """Return the GPU called *name*: its name here, its CUDA device name or a short form such as ``h100-sxm``.

    Case, spaces and punctuation do not matter.  Raises UnknownGpuError listing the known names.
    """
    table = _by_name()
    wanted = _normal(name)
    if wanted in table:
        return table[wanted]
    if wanted.startswith("nvidia") and wanted[len("nvidia") :] in table:
        return table[wanted[len("nvidia") :]]
    close = difflib.get_close_matches(wanted, table, n=1)
    hint = f" (did you mean {table[close[0]].name!r}?)" if close else ""
    raise UnknownGpuError(f"unknown GPU {name!r}{hint}; known: {', '.join(gpu.name for gpu in known_gpus())}")
