"""Predicts the cost of a kernel on a GPU that is not at hand."""

from __future__ import annotations

from collections.abc import Callable

from phantom.kernels.gpu import GpuSpec
from phantom.kernels.predict.constants import Constants, constants_for
from phantom.kernels.predict.estimate import Estimate
from phantom.kernels.predict.operator_classes import class_of, launches_nothing
from phantom.kernels.predict.rule_context import Context
from phantom.kernels.predict.rules import (
    compute_rules,
    index_rules,
    library_rules,
    tensor_rules,
    triton_rules,
)
from phantom.kernels.request.description import KernelDescription

Rule = Callable[[KernelDescription, Context], Estimate]

RULES: dict[str, Rule] = {
    "gemm": compute_rules.gemm,
    "attention": compute_rules.attention,
    "conv": compute_rules.convolution,
    "norm": tensor_rules.norm,
    "softmax": tensor_rules.softmax,
    "elementwise": tensor_rules.elementwise,
    "reduction": tensor_rules.reduction,
    "embedding": tensor_rules.embedding,
    "optimizer": tensor_rules.optimizer,
    "copy": tensor_rules.copy,
    "index": index_rules.index,
    "sort": index_rules.sort,
    "random": index_rules.random,
    "triton": triton_rules.triton,
    "other": compute_rules.other,
}


class Predictor:
    """Roofline-like models of every kernel class, with constants fitted per architecture.

    *gpu* names the device, *constants* replace the fitted ones of its architecture (for fitting and tests).
    """

    def __init__(self, gpu: GpuSpec, *, constants: Constants | None = None) -> None:
        self.context = Context(gpu, constants if constants is not None else constants_for(gpu.architecture))

    def estimate(self, kernel: KernelDescription) -> Estimate | None:
        """Return the predicted cost; None if the kernel launches nothing on the device.

        Raises KernelFormatError where the arguments are not those of the operator.
        """
        if launches_nothing(kernel) or self._on_host(kernel):
            return None
        if library_rules.is_library_kernel(kernel):
            return library_rules.estimate(kernel, self.context)
        return RULES[class_of(kernel)](kernel, self.context)

    def bytes_estimate(self, kernel: KernelDescription) -> Estimate:
        """Return the cost of moving the kernel's tensors once, whatever it computes."""
        return self.context.streamed(kernel, "other")

    def _on_host(self, kernel: KernelDescription) -> bool:
        """Tensors of the CPU only: no work for a GPU."""
        if self.context.gpu.is_cpu:
            return False
        devices = {tensor.device for tensor in kernel.in_tensors + kernel.out_tensors}
        return bool(devices) and devices <= {"cpu"}
