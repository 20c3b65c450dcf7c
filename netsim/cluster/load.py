"""Loads and checks cluster descriptions: presets by name, or a user's TOML file."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from netsim.cluster.gpus import known_gpus
from netsim.cluster.schema import Table
from netsim.cluster.sections import (
    degrade_section,
    fabric_section,
    host_section,
    nccl_section,
    node_section,
)
from netsim.cluster.spec import ClusterSpec, GpuSpec
from netsim.errors import ClusterError
from netsim.outside import OutsideError, parse_toml, printable, read_text

PRESETS = Path(__file__).parents[1] / "presets"
_MAX_FILE_BYTES = 16 << 20
PEAKS = ("float64", "float64_tensor", "float32", "tf32", "float16", "bfloat16", "float8", "float4", "int8")


def list_presets() -> list[str]:
    """Names of the presets, sorted."""
    return sorted(p.stem for p in PRESETS.glob("*.toml"))


def gpu_presets() -> list[str]:
    """Names that `[gpu] preset` accepts, sorted."""
    return sorted(known_gpus())


def gpu_preset(name: str) -> GpuSpec:
    """The GPU preset `name`; raises `ClusterError` for an unknown one."""
    return _gpu(Table({"preset": name}, file="gpu preset", path="gpu"))


def load_cluster(name_or_path: str | os.PathLike[str]) -> ClusterSpec:
    """Return the cluster of a preset's name or of a TOML file.

    Raises `ClusterError` naming file, key, value and what is allowed.
    """
    text = os.fspath(name_or_path)
    path = PRESETS / f"{text}.toml"
    if "/" in text or text.endswith(".toml") or not path.is_file():
        path = Path(text)
        if not path.exists():
            raise ClusterError(
                f"{printable(text)}: no such cluster: give a TOML file or one of the presets "
                f"{', '.join(list_presets())}"
            )
    try:
        data = parse_toml(read_text(path, limit_bytes=_MAX_FILE_BYTES), printable(str(path)))
    except OutsideError as error:
        raise ClusterError(str(error)) from None
    return parse_cluster(data, file=path.name if path.parent == PRESETS else str(path))


def parse_cluster(data: Mapping[str, Any], *, file: str) -> ClusterSpec:
    """Check the content of a cluster file; `file` is used in error messages.

    A file may start from another: `base = "PRESET"` takes every table of that preset and overrides single
    keys.
    """
    if "base" in data:
        base = Table(data, file=file).text("base", choices=list_presets())
        merged = parse_toml((PRESETS / f"{base}.toml").read_text(encoding="utf-8"), base)
        data = _merge(merged, {k: v for k, v in data.items() if k != "base"})
    top = Table(data, file=file)
    gpu = _gpu(top.table("gpu", required=True))
    node = node_section(top.table("node", required=True), gpu)
    spec = ClusterSpec(
        name=top.text("name", what="the cluster's name"),
        description=top.text("description", " ", what="a text").strip(),
        source=file,
        gpu=gpu,
        node=node,
        fabric=fabric_section(top.table("fabric"), node),
        nccl=nccl_section(top.table("nccl"), gpu, node),
        host=host_section(top.table("host")),
        degrade=degrade_section(top.table("degrade")),
    )
    top.close()
    return spec


def _merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """`over` on top of `base`, key by key; a table of another `kind` takes nothing from its base."""
    if "kind" in base and over.get("kind", base["kind"]) != base["kind"]:
        return dict(over)
    result = dict(base)
    for key, value in over.items():
        old = result.get(key)
        result[key] = _merge(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return result


def _gpu(t: Table) -> GpuSpec:
    preset = ""
    if "preset" in t:
        preset = t.text("preset", choices=gpu_presets())
        own = {k: t.raw(k) for k in t.names() if k != "preset"}
        t = Table(_merge(known_gpus()[preset].settings, own), file=t._file, path="gpu")
    capability = t.integers("capability", low=0, high=30)
    if len(capability) != 2 or capability[0] < 5:
        t.fail("capability", list(capability), "must be [major, minor] with major at least 5")
    peaks_table = t.table("peak_flops", required=True)
    peaks = {}
    for dtype in peaks_table.names():
        if dtype not in PEAKS:
            peaks_table.fail(dtype, peaks_table.raw(dtype), f"unknown type; allowed: {', '.join(PEAKS)}")
        peaks[dtype] = peaks_table.number(dtype, low=1e9, high=1e18, unit="FLOP/s")
    if "float32" not in peaks:
        t.fail("peak_flops", dict(peaks), "must give at least float32")
    memory = t.integer("memory_bytes", low=1 << 26, high=1 << 44, what="bytes")
    spec = GpuSpec(
        name=t.text("name", what="the GPU's name as CUDA reports it"),
        preset=preset,
        memory_bytes=memory,
        capability=(capability[0], capability[1]),
        multi_processor_count=t.integer("multi_processor_count", low=1, high=1024),
        clock_hz=t.number("clock_hz", low=1e8, high=1e10, unit="Hz"),
        memory_clock_hz=t.number("memory_clock_hz", 1e9, low=1e8, high=1e11, unit="Hz"),
        memory_bus_bits=t.integer("memory_bus_bits", 1024, low=32, high=65536, what="bits"),
        memory_bandwidth_bytes_per_s=t.number(
            "memory_bandwidth_bytes_per_s", low=1e9, high=1e14, unit="bytes per second"
        ),
        l2_cache_bytes=t.integer("l2_cache_bytes", low=1 << 16, high=1 << 32, what="bytes"),
        shared_memory_per_block_bytes=t.integer(
            "shared_memory_per_block_bytes", 49152, low=1024, high=1 << 24
        ),
        shared_memory_per_block_optin_bytes=t.integer(
            "shared_memory_per_block_optin_bytes", 101376, low=1024, high=1 << 24
        ),
        shared_memory_per_multiprocessor_bytes=t.integer(
            "shared_memory_per_multiprocessor_bytes", 102400, low=1024, high=1 << 24
        ),
        max_threads_per_multi_processor=t.integer("max_threads_per_multi_processor", 2048, low=32, high=8192),
        reserved_bytes=t.integer("reserved_bytes", 500_000_000, low=0, high=memory, what="bytes"),
        power_w=t.number("power_w", 400.0, low=1, high=1e5, unit="W"),
        peak_flops=peaks,
    )
    t.close()
    return spec
