"""Prices of fused kernels that libraries have and PyTorch has not: operators of the namespace `phantom`.

interpose/standins/operators.py defines them. Most are bound by memory: their tensors (what they read and what
they write, both arguments) pass once, at the efficiency of their class.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from phantom.kernels.predict.estimate import Estimate
from phantom.kernels.predict.rule_context import Context
from phantom.kernels.predict.rules import compute_rules, multi_tensor
from phantom.kernels.request.description import KernelDescription, TensorList

NAMESPACE = "phantom"
Rule = Callable[[KernelDescription, Context], Estimate]


@dataclass(frozen=True)
class LibraryKernel:
    """Cost class of the kernel, and its rule."""

    klass: str
    rule: Rule


def _streamed(efficiency: str) -> Rule:
    """Every tensor once; `efficiency` is a class of the constants' group `class_efficiency`."""

    def rule(kernel: KernelDescription, context: Context) -> Estimate:
        return context.streamed(kernel, efficiency)

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


def _memory_bound(klass: str) -> LibraryKernel:
    """A kernel of a class whose efficiency is that of the class."""
    return LibraryKernel(klass, _streamed(klass))


KERNELS: dict[str, LibraryKernel] = {
    "wgrad_accumulate": LibraryKernel("gemm", compute_rules.gemm),
    "grouped_gemm": LibraryKernel("gemm", compute_rules.gemm),
    "scaled_softmax": _memory_bound("softmax"),
    "scaled_softmax_backward": _memory_bound("softmax"),
    "multi_tensor_l2norm": LibraryKernel("reduction", _multi_tensor_norm),
    "multi_tensor_scale": LibraryKernel("optimizer", _multi_tensor),
    "multi_tensor_axpby": LibraryKernel("optimizer", _multi_tensor),
    "multi_tensor_adam": LibraryKernel("optimizer", _multi_tensor),
    "multi_tensor_sgd": LibraryKernel("optimizer", _multi_tensor),
    "blockwise_optimizer": LibraryKernel("optimizer", _streamed("multi_tensor")),
    "fused_rope": _memory_bound("elementwise"),
    "fused_activation": _memory_bound("elementwise"),
    "online_softmax": _memory_bound("reduction"),
    "cross_entropy_inplace": _memory_bound("softmax"),
    "quantize_fp8": _memory_bound("copy"),
    "amax": _memory_bound("reduction"),
    "permute_rows": _memory_bound("index"),
    "unpermute_rows": _memory_bound("index"),
    "moe_router": _memory_bound("softmax"),
    "attention_merge": _memory_bound("elementwise"),
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
