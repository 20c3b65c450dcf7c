"""Prices of fused kernels that libraries have and PyTorch has not: operators of the namespace `phantom`.

interpose/standins/operators.py defines them. Most are bound by memory: their tensors (what they read and what
they write, both arguments) pass once, at the efficiency of their class.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from phantom.kernels import compute_rules, multi_tensor
from phantom.kernels.context import Context
from phantom.kernels.description import KernelDescription, TensorList
from phantom.kernels.estimate import Estimate

NAMESPACE = "phantom"
Rule = Callable[[KernelDescription, Context], Estimate]


@dataclass(frozen=True)
class LibraryKernel:
    """Cost class of the kernel, and its rule."""

    klass: str
    rule: Rule


def _streamed(efficiency: str, *, launches: int = 1) -> Rule:
    """Every tensor once; `efficiency` is a class of the constants' group `class_efficiency`."""

    def rule(kernel: KernelDescription, context: Context) -> Estimate:
        return context.streamed(kernel, efficiency, launches=launches)

    return rule


def _multi_tensor(kernel: KernelDescription, context: Context) -> Estimate:
    """Apex's multi_tensor_apply: chunks of all tensors, up to 110 tensors and 320 blocks per launch, as
    PyTorch's (csrc/multi_tensor_apply.cuh of either). Depth: tensors per element, the written ones that are
    also read counted once.
    """
    reads, writes = (a.tensors() if isinstance(a, TensorList) else () for a in kernel.args[:2])
    first = writes or reads
    depth = max(1, min(5, len(reads) // max(len(first), 1)))
    launches = multi_tensor.launches([t.numel for t in first], depth=depth, scalars=False) if first else 1
    return context.streamed(kernel, "multi_tensor", launches=max(launches, 1))


def _multi_tensor_norm(kernel: KernelDescription, context: Context) -> Estimate:
    """The norms of the chunks, and a small kernel that adds them up."""
    return _multi_tensor(kernel, context) + context.moved(0.0, "reduction")


KERNELS: dict[str, LibraryKernel] = {
    "wgrad_accumulate": LibraryKernel("gemm", compute_rules.gemm),
    "grouped_gemm": LibraryKernel("gemm", compute_rules.gemm),
    "scaled_softmax": LibraryKernel("softmax", _streamed("softmax")),
    "scaled_softmax_backward": LibraryKernel("softmax", _streamed("softmax")),
    "multi_tensor_l2norm": LibraryKernel("reduction", _multi_tensor_norm),
    "multi_tensor_scale": LibraryKernel("optimizer", _multi_tensor),
    "multi_tensor_axpby": LibraryKernel("optimizer", _multi_tensor),
    "multi_tensor_adam": LibraryKernel("optimizer", _multi_tensor),
    "multi_tensor_sgd": LibraryKernel("optimizer", _multi_tensor),
    "blockwise_optimizer": LibraryKernel("optimizer", _streamed("multi_tensor")),
    "fused_rope": LibraryKernel("elementwise", _streamed("elementwise")),
    "fused_activation": LibraryKernel("elementwise", _streamed("elementwise")),
    "fused_bias_dropout": LibraryKernel("elementwise", _streamed("elementwise")),
    "online_softmax": LibraryKernel("reduction", _streamed("reduction")),
    "cross_entropy_inplace": LibraryKernel("softmax", _streamed("softmax")),
    "quantize_fp8": LibraryKernel("copy", _streamed("copy")),
    "amax": LibraryKernel("reduction", _streamed("reduction")),
    "permute_rows": LibraryKernel("index", _streamed("index")),
    "unpermute_rows": LibraryKernel("index", _streamed("index")),
    "moe_router": LibraryKernel("softmax", _streamed("softmax")),
    "attention_merge": LibraryKernel("elementwise", _streamed("elementwise")),
}


def is_library_kernel(kernel: KernelDescription) -> bool:
    """Whether the operator is one of a stand-in."""
    return kernel.namespace == NAMESPACE


def class_of(kernel: KernelDescription) -> str:
    """The cost class of a stand-in's operator."""
    known = KERNELS.get(kernel.name)
    return known.klass if known is not None else "other"


def estimate(kernel: KernelDescription, context: Context) -> Estimate:
    """The predicted cost of a stand-in's operator; one that is not listed is priced by its bytes."""
    known = KERNELS.get(kernel.name)
    return known.rule(kernel, context) if known is not None else context.streamed(kernel, "other")
