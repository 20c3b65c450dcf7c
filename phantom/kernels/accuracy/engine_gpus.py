"""aiconfigurator's names of GPUs."""

from __future__ import annotations

from phantom.kernels.gpu import GpuSpec, UnknownGpuError, gpu_by_name

_NAMES = {"rtx_pro_6000_server": "rtx-pro-6000"}


def engine_gpu(system: str) -> GpuSpec | None:
    """Return the GPU of a `system` column such as ``h100_sxm``, or None for one that is not known."""
    try:
        return gpu_by_name(_NAMES.get(system, system.replace("_", "-")))
    except UnknownGpuError:
        return None
