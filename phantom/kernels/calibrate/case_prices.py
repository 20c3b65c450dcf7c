"""Predicts published cases through the same functions that price a job's kernels."""

from __future__ import annotations

from dataclasses import replace

from phantom.kernels.calibrate.published_rows import AttentionCase, GemmCase, MemoryCase
from phantom.kernels.predict.fused_attention import attention_s
from phantom.kernels.predict.rule_context import Context
from phantom.kernels.predict.rules.compute_rules import math_attention


def gemm_case_s(case: GemmCase, context: Context) -> float:
    """Return the predicted seconds of a published product."""
    return sum(context.product(shape, case.dtype, burst=True).seconds for shape in case.shapes)


def attention_case_s(case: AttentionCase, context: Context) -> float:
    """Return the predicted seconds of a published attention pass (forward, backward, or both)."""
    shapes = [case.shape, replace(case.shape, backward=True)] if case.part == "both" else [case.shape]
    if case.implementation == "math":
        return sum(math_attention(shape, context).seconds for shape in shapes)
    total = 0.0
    for shape in shapes:
        group = context.constants.group(
            f"attention.{case.implementation}{'.backward' if shape.backward else ''}"
        )
        total += attention_s(
            shape, peak_flops_per_s=context.gpu.fp16_flops_per_s, gpu=context.gpu, constants=group
        )  # fmt: skip
    if case.engine_call:
        total += context.constants.group("attention.te_call")[f"{case.part}_us"] * 1e-6
    return total


def memory_case_s(case: MemoryCase, context: Context) -> float:
    """Return the predicted seconds of a published memory-bound kernel."""
    kind = "copy" if "copy" in case.kind else "elementwise"
    seconds = context.moved(case.traffic_bytes, kind).seconds
    if case.kind == "copy by size":
        # These are copies by cudaMemcpyAsync in a loop: their floor is the copy's issue, not a kernel's.
        memory = context.constants.group("memory")
        seconds += (memory["copy_floor_us"] - memory["floor_us"]) * 1e-6
    return seconds
