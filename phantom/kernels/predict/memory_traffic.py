"""Time of kernels limited by memory: launch floor plus bytes over achieved bandwidth."""

from __future__ import annotations

import math

from phantom.kernels.gpu import GpuSpec
from phantom.kernels.predict.constants import Constants
from phantom.kernels.request.description import KernelDescription, TensorList, TensorMeta

# Bytes fetched per byte used where neighbouring elements are far apart (32-byte sectors, one element of
# each used,
# partly repaid by L2).
_STRIDED_OVERFETCH = 2.0
_TRANSPOSED_OVERFETCH = 1.25

# Outputs are written only: the first argument is not read.
_WRITE_ONLY = frozenset(
    [
        "copy",
        "fill",
        "zero",
        "normal",
        "uniform",
        "random",
        "exponential",
        "geometric",
        "cauchy",
        "log_normal",
        "_resize_output",
        "set",
        "_foreach_copy",
        "zeros_like",
        "ones_like",
        "full_like",
        "rand_like",
        "randn_like",
        "randint_like",
        "new_zeros",
        "new_ones",
        "new_full",
        "empty_like",
        "_foreach_zero",
    ]
)


def memory_s(
    traffic_bytes: float,
    *,
    gpu: GpuSpec,
    constants: Constants,
    klass: str,
    efficiency: float | None = None,
    launches: int = 1,
) -> float:
    """Return the seconds of *launches* kernels that together move *traffic_bytes*.

    t = launches * floor + bytes / (peak * saturation * class efficiency * (1 + gain * exp(-bytes / (share *
    L2)))).
    The floor is the duration of an empty kernel with its gap on the stream; the gain is the faster rate
    while the
    working set sits in L2.  Constants: group ``memory``; class efficiencies: group ``class_efficiency``.
    """
    group = constants.group("memory")
    if efficiency is None:
        efficiency = constants.group("class_efficiency").get(klass, 1.0)
    per_launch = traffic_bytes / max(launches, 1)
    cached = 1.0 + group["l2_gain"] * math.exp(-per_launch / (group["l2_share"] * gpu.l2_bytes))
    rate = gpu.memory_bytes_per_s * group["saturation"] * efficiency * cached
    return launches * group["floor_us"] * 1e-6 + traffic_bytes / rate


def read_bytes(tensor: TensorMeta) -> float:
    """Return the DRAM bytes that reading *tensor* once moves, given its stride class."""
    layout = tensor.layout
    if layout == "g":
        return tensor.stored_bytes * _STRIDED_OVERFETCH
    if layout == "t" and tensor.item_bytes <= 4:
        return tensor.stored_bytes * _TRANSPOSED_OVERFETCH
    return tensor.stored_bytes


def read_inputs(kernel: KernelDescription) -> tuple[TensorMeta, ...]:
    """Return the tensors that *kernel* reads.

    All inputs, less a first argument that is only written or only measured.
    """
    tensors = kernel.in_tensors
    if kernel.base_name in _WRITE_ONLY and tensors:
        if kernel.base_name == "_foreach_copy":
            first = kernel.args[0]
            return tensors[len(first.tensors()) :] if isinstance(first, TensorList) else tensors[1:]
        if kernel.base_name == "_foreach_zero":
            return ()
        return tensors[1:]
    return tensors


def written_tensors(kernel: KernelDescription) -> tuple[TensorMeta, ...]:
    """Return the tensors that *kernel* writes.

    Its outputs; for an in-place operator that returns none, its first list.
    """
    if kernel.out_tensors:
        return kernel.out_tensors
    if kernel.is_inplace and kernel.args:
        first = kernel.args[0]
        if isinstance(first, TensorMeta):
            return (first,)
        if isinstance(first, TensorList):
            return tuple(first.tensors())
    return ()


def traffic_bytes(kernel: KernelDescription) -> float:
    """Return the bytes that *kernel* reads and writes if every tensor passes once."""
    # Reads and writes of different layouts are a transposition: charged on the side that is strided.
    return sum(map(read_bytes, read_inputs(kernel))) + sum(map(read_bytes, written_tensors(kernel)))
