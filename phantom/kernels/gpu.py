"""The facts about a GPU that predictions use, and the list of GPUs known by name."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from functools import lru_cache

import netsim.cluster.gpus
from netsim.cluster import gpu_preset
from netsim.cluster.gpus import KnownGpu


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


def _spec(known: KnownGpu) -> GpuSpec:
    gpu = gpu_preset(known.preset)
    peaks = gpu.peak_flops
    fp32 = peaks["float32"]
    # fp4 weights are unpacked to bf16 where the GPU has fp8 units but no fp4.
    without_fp4 = peaks["bfloat16"] if "float8" in peaks else fp32
    return GpuSpec(
        name=known.title,
        architecture=known.architecture,
        capability=gpu.capability,
        sm_count=gpu.multi_processor_count,
        boost_clock_hz=gpu.clock_hz,
        memory_bytes=gpu.memory_bytes,
        memory_bytes_per_s=gpu.memory_bandwidth_bytes_per_s,
        l2_bytes=gpu.l2_cache_bytes,
        fp64_flops_per_s=peaks.get("float64_tensor", peaks["float64"]),
        fp32_flops_per_s=fp32,
        tf32_flops_per_s=peaks.get("tf32", fp32),
        fp16_flops_per_s=peaks["float16"],
        bf16_flops_per_s=peaks.get("bfloat16", fp32),
        fp8_flops_per_s=peaks.get("float8", fp32),
        fp4_flops_per_s=peaks.get("float4", without_fp4),
        int8_ops_per_s=peaks["int8"],
        pcie_bytes_per_s=known.pcie_bytes_per_s,
        aliases=(known.preset, gpu.name, *known.aliases),
    )


@lru_cache(maxsize=1)
def known_gpus() -> tuple[GpuSpec, ...]:
    """Return every GPU of ``netsim/data/gpus.toml``, in the file's order."""
    return tuple(_spec(known) for known in netsim.cluster.gpus.known_gpus().values())


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
