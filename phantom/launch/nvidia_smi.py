"""Stands for `nvidia-smi` in a job: the GPUs of the simulated node.

Launch scripts list the GPUs before they start, or count them (`nvidia-smi -L | wc -l`). Answered are -L,
--query-gpu and the bare command; what depends on the moment (memory in use, utilisation, temperature) is
`[N/A]`, as with the real program on devices that do not report it. Anything else is an error that says so.

Runs by itself, as `python -I nvidia_smi.py ARGUMENTS`; the launcher puts a script of that name first on PATH
(phantom/launch/shims.py). Needs PHANTOM_CONFIG.
"""

from __future__ import annotations

import json
import os
import sys
import uuid
from collections.abc import Sequence

DRIVER_VERSION = "570.124.06"
"""The driver that came with CUDA 12.8, the version that torch.version.cuda names."""
CUDA_VERSION = "12.8"
UNKNOWN = "[N/A]"
_MOMENTARY = (
    "memory.used", "memory.free", "utilization.gpu", "utilization.memory", "temperature.gpu",
    "temperature.memory", "power.draw", "power.limit", "fan.speed", "pstate", "clocks.sm", "clocks.mem",
    "clocks.gr", "timestamp", "ecc.mode.current", "mig.mode.current", "persistence_mode", "compute_mode",
    "serial", "vbios_version", "memory.reserved", "temperature.gpu.tlimit", "power.draw.average",
    "power.draw.instant", "power.default_limit", "power.min_limit", "power.max_limit", "enforced.power.limit",
    "clocks.current.sm", "clocks.current.memory", "clocks.current.graphics", "clocks.video",
    "clocks.applications.graphics", "clocks.applications.memory", "clocks_throttle_reasons.active",
    "clocks_event_reasons.active", "pcie.link.gen.current", "pcie.link.width.current", "display_active",
    "display_mode", "ecc.errors.corrected.volatile.total", "ecc.errors.uncorrected.volatile.total",
    "inforom.img", "accounting.mode",
)  # fmt: skip


def main(arguments: Sequence[str]) -> int:
    """Answers one call; returns the exit status."""
    config = json.loads(os.environ["PHANTOM_CONFIG"])
    gpus = [_gpu(config, index) for index in range(config["device_count"])]
    wanted: str | None = None
    formats: list[str] = []
    listing = False
    chosen: str | None = None
    words = list(arguments)
    while words:
        option, _, value = words.pop(0).partition("=")
        if option in ("-L", "--list-gpus"):
            listing = True
        elif option in ("--query-gpu", "--format", "-i", "--id"):
            value = value or (words.pop(0) if words else "")
            if option == "--query-gpu":
                wanted = value
            elif option == "--format":
                formats = [part.strip() for part in value.split(",")]
            else:
                chosen = value
        else:
            return _refuse(arguments)
    if chosen is not None:
        asked = chosen.split(",")
        gpus = [gpu for gpu in gpus if gpu["index"] in asked or gpu["uuid"] in asked]
        if not gpus:
            sys.stdout.write("No devices were found\n")
            return 6
    if wanted is not None:
        return _query(gpus, [name.strip() for name in wanted.split(",")], formats)
    sys.stdout.write(_list(gpus) if listing else _table(gpus))
    return 0


def _gpu(config: dict[str, object], index: int) -> dict[str, str]:
    device = config["device"]
    assert isinstance(device, dict)
    node = os.environ.get("PHANTOM_NODE", os.environ.get("GROUP_RANK", "0"))
    # The same as torch.cuda.get_device_properties(index).uuid: interpose/cuda/devices.py.
    identity = uuid.uuid5(uuid.NAMESPACE_OID, f"phantom/{node}/{index}")
    clock, memory_clock = (
        f"{device[name] // 1000} MHz" if name in device else UNKNOWN
        for name in ("clock_rate_khz", "memory_clock_rate_khz")
    )
    bus = f"00000000:{0x18 + 8 * index:02X}:00.0"
    return {
        "index": str(index),
        "count": str(config["device_count"]),
        "name": device["name"],
        "gpu_name": device["name"],
        "uuid": f"GPU-{identity}",
        "gpu_uuid": f"GPU-{identity}",
        "memory.total": f"{device['total_memory'] >> 20} MiB",
        "compute_cap": f"{device['major']}.{device['minor']}",
        "driver_version": DRIVER_VERSION,
        "pci.bus_id": bus,
        "gpu_bus_id": bus,
        "pci.bus": f"0x{0x18 + 8 * index:02X}",
        "pci.domain": "0x0000",
        "pci.device": "0x00",
        "clocks.max.sm": clock,
        "clocks.max.graphics": clock,
        "clocks.max.gr": clock,
        "clocks.max.memory": memory_clock,
        "clocks.max.mem": memory_clock,
    } | dict.fromkeys(_MOMENTARY, UNKNOWN)


def _query(gpus: list[dict[str, str]], names: list[str], formats: list[str]) -> int:
    for name in names:
        if name not in gpus[0]:
            sys.stdout.write(f'Field "{name}" is not a valid field to query.\n')
            sys.stderr.write(f"phantom: {name} is not among the fields that the simulated nvidia-smi knows\n")
            return 2
    if "csv" not in formats:
        sys.stdout.write('"--format=" is required with --query-gpu: csv, with noheader and nounits\n')
        return 2
    plain = "nounits" in formats
    if "noheader" not in formats:
        heads = (name if plain else name + _unit_of(name) for name in names)
        sys.stdout.write(", ".join(heads) + "\n")
    for gpu in gpus:
        values = (
            gpu[name].removesuffix(" MiB").removesuffix(" MHz") if plain else gpu[name] for name in names
        )
        sys.stdout.write(", ".join(values) + "\n")
    return 0


def _unit_of(name: str) -> str:
    """What the head of a column adds to the field's name."""
    if name.startswith("memory."):
        return " [MiB]"
    return " [MHz]" if name.startswith("clocks.") else ""


def _list(gpus: list[dict[str, str]]) -> str:
    return "".join(f"GPU {gpu['index']}: {gpu['name']} (UUID: {gpu['uuid']})\n" for gpu in gpus)


def _table(gpus: list[dict[str, str]]) -> str:
    """The bare command's answer: meant for readers, so without the real one's frame."""
    lines = [f"NVIDIA-SMI {DRIVER_VERSION}  Driver Version: {DRIVER_VERSION}  CUDA Version: {CUDA_VERSION}",
             "(simulated by phantom)"]  # fmt: skip
    lines += [f"{gpu['index']:>3}  {gpu['name']}  {gpu['pci.bus_id']}  {gpu['memory.total']}" for gpu in gpus]
    return "\n".join(lines) + "\n"


def _refuse(arguments: Sequence[str]) -> int:
    sys.stderr.write(
        f"phantom: the simulated nvidia-smi does not answer `nvidia-smi {' '.join(arguments)}`, only -L, "
        f"--query-gpu=... --format=csv and the bare command. Remedy: leave the call out, or ask torch.cuda\n"
    )
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
