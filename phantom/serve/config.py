"""What ranks are told of the simulated machine, made from the cluster description."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from netsim.cluster import gpu_preset
from netsim.cluster.spec import ClusterSpec
from netsim.cluster.spec import GpuSpec as ClusterGpu

if TYPE_CHECKING:
    from phantom.kernels.gpu import GpuSpec as KernelGpu

PS_PER_S = 10**12
# NCCL keeps a buffer of 4 MiB (NCCL_BUFFSIZE) per channel, connection and direction for the Simple protocol
# plus the LL and LL128 ones: 200-300 MiB for the 16-32 channels of a current server.
NCCL_ALLOWANCE_BYTES = 256 * 1024 * 1024
# The same on every CUDA GPU since Pascal (CUDA C++ Programming Guide, compute capabilities).
REGISTERS_PER_MULTIPROCESSOR = 65_536
WARP_SIZE = 32


def device_properties(gpu: ClusterGpu) -> dict[str, Any]:
    """Fields of `torch.cuda.get_device_properties` (bytes, kHz) for the simulated GPU."""
    return {
        "name": gpu.name,
        "major": gpu.capability[0],
        "minor": gpu.capability[1],
        "total_memory": gpu.memory_bytes,
        "multi_processor_count": gpu.multi_processor_count,
        "l2_cache_bytes": gpu.l2_cache_bytes,
        "clock_rate_khz": round(gpu.clock_hz / 1e3),
        "memory_clock_rate_khz": round(gpu.memory_clock_hz / 1e3),
        "memory_bus_bits": gpu.memory_bus_bits,
        "shared_memory_per_block_bytes": gpu.shared_memory_per_block_bytes,
        "shared_memory_per_block_optin_bytes": gpu.shared_memory_per_block_optin_bytes,
        "shared_memory_per_multiprocessor_bytes": gpu.shared_memory_per_multiprocessor_bytes,
        "max_threads_per_multi_processor": gpu.max_threads_per_multi_processor,
        "regs_per_multiprocessor": REGISTERS_PER_MULTIPROCESSOR,
        "warp_size": WARP_SIZE,
    }


def rank_config(cluster: ClusterSpec, *, world_size: int, gpus_per_node: int) -> dict[str, Any]:
    """The simulator's part of PHANTOM_CONFIG: device, capacity in bytes, host model in picoseconds.

    `gpu_factor` and `host_factor` are the what-if speeds of single ranks and nodes (text keys, as JSON has
    no others).
    """
    host = cluster.host
    is_cpu = cluster.gpu.is_cpu
    allowance = NCCL_ALLOWANCE_BYTES if world_size > 1 else 0
    pcie = cluster.node.pcie
    return {
        "cluster": cluster.name,
        "device_count": gpus_per_node,
        "device": device_properties(cluster.gpu),
        "capacity_bytes": max(cluster.gpu.memory_bytes - cluster.gpu.reserved_bytes - allowance, 0),
        "host": {
            "op_ps": round(host.op_s * PS_PER_S),
            "view_ps": round(host.view_s * PS_PER_S),
            "backward_node_ps": round(host.backward_node_s * PS_PER_S),
            "launch_latency_ps": round(host.launch_latency_s * PS_PER_S),
            "collective_ps": round(host.collective_s * PS_PER_S),
            "query_ps": round(host.query_s * PS_PER_S),
            "store_ps": round(host.store_s * PS_PER_S),
            # Where the CPU is the device nobody waits for another one.
            **({"sync_ps": 0} if is_cpu else {}),
        },
        "host_optimizer_bytes_per_s": host.optimizer_bytes_per_s,
        "blocking_launches": is_cpu,
        "h2d_bytes_per_s": pcie.bandwidth_bytes_per_s,
        "gpu_factor": {str(rank): factor for rank, factor in sorted(cluster.degrade.gpus.items())},
        "host_factor": {str(node): factor for node, factor in sorted(cluster.degrade.hosts.items())},
    }


def cluster_digest(cluster: ClusterSpec) -> str:
    """The same for equal descriptions: by it a simulator elsewhere sees that a run means its cluster."""
    return hashlib.sha256(repr(cluster).encode()).hexdigest()


def kernel_gpu(cluster: ClusterSpec) -> KernelGpu:
    """The GPU that kernels are priced for: the one of that name, with the cluster file's own figures where
    it changes its preset's. Raises phantom.kernels.UnknownGpuError if neither name nor preset is known.
    """
    from phantom.kernels.gpu import UnknownGpuError, gpu_by_name

    gpu = cluster.gpu
    try:
        known = gpu_by_name(gpu.name)
    except UnknownGpuError:
        if not gpu.preset:
            raise
        known = gpu_by_name(gpu.preset)
    if not gpu.preset:
        return known
    preset = gpu_preset(gpu.preset)
    changes: dict[str, Any] = {}
    if gpu.multi_processor_count != preset.multi_processor_count:
        changes["sm_count"] = gpu.multi_processor_count
    if gpu.clock_hz != preset.clock_hz:
        changes["boost_clock_hz"] = gpu.clock_hz
    if gpu.memory_bytes != preset.memory_bytes:
        changes["memory_bytes"] = gpu.memory_bytes
    if gpu.memory_bandwidth_bytes_per_s != preset.memory_bandwidth_bytes_per_s:
        changes["memory_bytes_per_s"] = gpu.memory_bandwidth_bytes_per_s
    if gpu.l2_cache_bytes != preset.l2_cache_bytes:
        changes["l2_bytes"] = gpu.l2_cache_bytes
    for theirs, ours in _PEAKS.items():
        if theirs in gpu.peak_flops and gpu.peak_flops[theirs] != preset.peak_flops.get(theirs):
            changes[ours] = gpu.peak_flops[theirs]
    return replace(known, **changes) if changes else known


_PEAKS = {
    "float64_tensor": "fp64_flops_per_s",
    "float32": "fp32_flops_per_s",
    "tf32": "tf32_flops_per_s",
    "float16": "fp16_flops_per_s",
    "bfloat16": "bf16_flops_per_s",
    "float8": "fp8_flops_per_s",
    "float4": "fp4_flops_per_s",
    "int8": "int8_ops_per_s",
}
