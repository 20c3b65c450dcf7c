"""Prediction of compiled Triton kernels, from what was counted in their IR and from their launch geometry.

The rank counts (`interpose/triton/footprint.py`) and sends in the request's `sm` map: `grid`, `warps`,
`stages`, `cluster` (blocks), `registers` and `stack_bytes` of a thread, `shared_bytes` of a block;
`read_bytes` and `written_bytes` that must pass through DRAM once, `l2_bytes` of all programs together,
`atomic_bytes`; `dot_flops` as (data type, FLOPs); `instructions` in fp32 additions; `rounds`, how often a
program waits for memory; `unknown_loops`; `problem` where nothing could be counted.
"""

from __future__ import annotations

import math

from phantom.kernels.gpu import GpuSpec
from phantom.kernels.predict.estimate import Estimate
from phantom.kernels.predict.rule_context import Context
from phantom.kernels.request.description import KernelDescription
from phantom.kernels.request.dtypes import math_class
from phantom.wire import compute_capability

_REGISTERS = 65536
_REGISTER_UNIT = 256  # given to a warp at once
_WARP = 32
_START_ROUNDS = 0.5


class TritonKernelNotCounted(ValueError):
    """Nothing but the tensors is known of a Triton kernel's work; the text says why."""


def resident_blocks(gpu: GpuSpec, *, warps: int, registers: int, shared_bytes: int) -> int:
    """Blocks that one multiprocessor holds at once, at least one (the CUDA occupancy calculator)."""
    capability = gpu.capability
    limits = [
        compute_capability.max_blocks(capability),
        compute_capability.max_threads(capability) // (warps * _WARP),
    ]
    per_warp = math.ceil(max(registers, 16) * _WARP / _REGISTER_UNIT) * _REGISTER_UNIT
    limits.append(_REGISTERS // (per_warp * warps))
    block_shared_bytes = shared_bytes + compute_capability.system_shared_bytes(capability)
    if block_shared_bytes > 0:
        limits.append(compute_capability.shared_memory_bytes(capability) // block_shared_bytes)
    return max(1, min(limits))


def triton(kernel: KernelDescription, context: Context) -> Estimate:
    """Seconds of one launch: launch floor plus the slowest of four.

    * DRAM: as every memory-bound kernel (phantom.kernels.predict.memory_traffic).
    * L2: all programs' sectors, spills and atomics over `l2_bytes_per_clock` of each multiprocessor in use.
    * latency: waves of programs, each `rounds` times `latency_us` and half of that to start and to end; loops
      of products prefetch over `stages`.
    * arithmetic: products at `dot_efficiency` of the dense peak, in whole waves, then the instructions at the
      fp32 rate, since tensor cores wait for what they are fed with.

    Raises TritonKernelNotCounted where the rank could count nothing, or met loops of unknown length.
    """
    facts = dict(kernel.extra)
    problem = facts.get("problem")
    if problem:
        raise TritonKernelNotCounted(str(problem))
    if facts.get("unknown_loops"):
        raise TritonKernelNotCounted(f"{facts['unknown_loops']} loops whose length nothing tells")
    gpu, group = context.gpu, context.constants.group("triton")
    grid_x, grid_y, grid_z = facts["grid"]
    programs = grid_x * grid_y * grid_z
    blocks = programs * facts["cluster"]
    resident = resident_blocks(
        gpu, warps=facts["warps"], registers=facts["registers"], shared_bytes=facts["shared_bytes"]
    )
    used = min(blocks, gpu.sm_count)
    whole = math.ceil(blocks / gpu.sm_count) * gpu.sm_count / blocks if blocks > gpu.sm_count else 1.0

    moved = context.moved(float(facts["read_bytes"] + facts["written_bytes"]), "triton")
    floor_s = context.constants.group("memory")["floor_us"] * 1e-6

    spilled = 2.0 * facts["stack_bytes"] * facts["warps"] * _WARP * blocks
    near = facts["l2_bytes"] + spilled + facts["atomic_bytes"] * group["atomic_cost"]
    l2_s = near / (used * group["l2_bytes_per_clock"] * gpu.boost_clock_hz)

    products = sum(flops for _, flops in facts["dot_flops"])
    waves = math.ceil(blocks / (resident * gpu.sm_count))
    rounds = facts["rounds"] / (max(facts["stages"], 1) if products else 1)
    latency_s = waves * (rounds + _START_ROUNDS) * group["latency_us"] * 1e-6

    share = used / gpu.sm_count
    dot_s = 0.0
    for dtype, flops in facts["dot_flops"]:
        kind = "tf32" if dtype == "tf32" else math_class(dtype)
        dot_s += flops / (gpu.peak_flops_per_s(kind) * group["dot_efficiency"] * share)
    instruction_s = facts["instructions"] / (gpu.fp32_flops_per_s / 2 * group["issue_efficiency"] * share)
    arithmetic_s = (dot_s + instruction_s) * whole

    return Estimate(floor_s + max(moved.seconds - floor_s, l2_s, latency_s, arithmetic_s))
