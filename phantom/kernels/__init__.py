"""Costs of kernels: measured once, stored for ever, predicted where there is no device."""

from phantom.kernels.cost import Cost
from phantom.kernels.cost_model import CostModel
from phantom.kernels.gpu import GpuSpec, UnknownGpuError, gpu_by_name, known_gpus
from phantom.kernels.key import cost_key
from phantom.kernels.request.description import KernelDescription, KernelFormatError, TensorMeta, parse_kernel

__all__ = [
    "Cost",
    "CostModel",
    "GpuSpec",
    "KernelDescription",
    "KernelFormatError",
    "TensorMeta",
    "UnknownGpuError",
    "cost_key",
    "gpu_by_name",
    "known_gpus",
    "parse_kernel",
]
