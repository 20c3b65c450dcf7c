"""The devices that this machine can measure on."""

from __future__ import annotations

import platform
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from phantom.kernels.gpu import GpuSpec, UnknownGpuError, gpu_by_name


@dataclass(frozen=True, kw_only=True)
class LocalDevice:
    """A device that is here: torch's name, the name in the store, versions, threads, clock.

    *processes* run on it at once (the ranks of a server whose device is its CPU), each with *threads*.
    """

    torch_name: str
    kind: str
    name: str
    threads: int
    torch: str
    runtime: str
    clock_hz: float | None = None
    processes: int = 1


_DEVICE_NODES = ("/dev/nvidiactl", "/dev/nvidia0", "/dev/dxg", "/dev/kfd")


@lru_cache(maxsize=1)
def cpu_name() -> str:
    """Return the CPU's model name."""
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return "CPU " + " ".join(line.partition(":")[2].split())
    except OSError:
        pass
    return "CPU " + (platform.processor() or platform.machine() or "unknown")


def shared_cpu_name(processes: int) -> str:
    """Return the name under which kernels are stored that were measured with so many processes at once."""
    return cpu_name() if processes == 1 else f"{cpu_name()}, {processes} processes"


def local_cpu(*, threads: int = 1, processes: int = 1) -> LocalDevice:
    """Return this machine's CPU with *threads* threads in each of *processes*.  Imports torch (for its
    version)."""
    import torch

    library = "MKL" if torch.backends.mkl.is_available() else "OpenBLAS or none"
    return LocalDevice(
        torch_name="cpu", kind="cpu", name=shared_cpu_name(processes), threads=threads,
        torch=torch.__version__, runtime=library, processes=processes,
    )  # fmt: skip


def local_cuda(gpu: GpuSpec | None = None) -> LocalDevice | None:
    """Return the first CUDA device here (that is a *gpu*, if given), or None."""
    if platform.system() == "Linux" and not any(Path(node).exists() for node in _DEVICE_NODES):
        return None  # spares the import of torch
    import torch

    if not torch.version.cuda or not torch.cuda.is_available():
        return None
    for index in range(torch.cuda.device_count()):
        name = torch.cuda.get_device_name(index)
        try:
            known = gpu_by_name(name)
        except UnknownGpuError:
            known = None
        if gpu is None or (known is not None and known.name == gpu.name) or name == gpu.name:
            properties = torch.cuda.get_device_properties(index)
            clock_khz = getattr(properties, "clock_rate", None)
            return LocalDevice(
                torch_name=f"cuda:{index}", kind="cuda", threads=0,
                name=known.name if known is not None else name,
                torch=torch.__version__, runtime=f"CUDA {torch.version.cuda}",
                clock_hz=clock_khz * 1e3 if clock_khz else None,
            )  # fmt: skip
    return None


def local_device(gpu: GpuSpec, *, threads: int = 1, processes: int = 1) -> LocalDevice | None:
    """Return the device here that *gpu* describes: the CPU for a CPU, a CUDA device of that name, or None."""
    return local_cpu(threads=threads, processes=processes) if gpu.is_cpu else local_cuda(gpu)
