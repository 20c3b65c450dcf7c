"""What a CUDA operator is on the CPU: the written map for measuring and for CPU jobs.

| dispatched for CUDA | on the CPU |
|---|---|
| flash, cuDNN and efficient attention | the CPU's flash attention |
| ``cudnn_convolution`` (and transposed) | ``convolution`` |
| ``cudnn_batch_norm`` and its backward | ``native_batch_norm`` and its backward |
| everything else | itself (``_foreach_*`` runs tensor by tensor there) |
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from phantom.kernels.predict.fused_attention import attention_arguments
from phantom.kernels.request.description import Argument, IntList, KernelDescription, TensorMeta

_FORWARD = "aten::_scaled_dot_product_flash_attention_for_cpu"
_BACKWARD = "aten::_scaled_dot_product_flash_attention_for_cpu_backward"


def cpu_form(kernel: KernelDescription) -> KernelDescription:
    """Return *kernel* as the CPU would be given it; itself where the CPU has the same operator."""
    rule = _RULES.get(kernel.base_name)
    return rule(kernel) if rule is not None else kernel


def _attention(kernel: KernelDescription) -> KernelDescription:
    q_index, layout, causal, dropout = attention_arguments(kernel)
    q, k, v = (kernel.need_tensor(q_index + i) for i in range(3))
    if layout != "bhsd" or len(q.sizes) != 4:
        return kernel
    p = 0.1 if dropout else 0.0
    if "backward" not in kernel.base_name:
        return KernelDescription(_FORWARD, (q, k, v, p, causal, None, None), kernel.outs[:2], kernel.extra)
    grad = kernel.need_tensor(0)
    sums = TensorMeta("float32", q.sizes[:3], (q.sizes[1] * q.sizes[2], q.sizes[2], 1))
    args: tuple[Argument, ...] = (grad, q, k, v, grad, sums, p, causal, None, None)
    return KernelDescription(_BACKWARD, args, kernel.outs[:3], kernel.extra)


def _convolution(kernel: KernelDescription) -> KernelDescription:
    data, weight = kernel.args[0], kernel.args[1]
    transposed = "transpose" in kernel.base_name
    offset = 1 if transposed else 0
    padding = kernel.args[2]
    output_padding = kernel.args[3] if transposed else IntList((0,) * len(kernel.value(2, (0,))))
    stride, dilation, groups = kernel.args[3 + offset], kernel.args[4 + offset], kernel.args[5 + offset]
    args = (data, weight, None, stride, padding, dilation, transposed, output_padding, groups)
    return replace(kernel, op="aten::convolution", args=args)


def _batch_norm(kernel: KernelDescription) -> KernelDescription:
    return replace(kernel, op="aten::native_batch_norm", outs=kernel.outs[:3])


def _batch_norm_backward(kernel: KernelDescription) -> KernelDescription:
    data, grad, weight, mean, var, save_mean, save_var = kernel.args[:7]
    args = (grad, data, weight, mean, var, save_mean, save_var, True, 1e-5, IntList((1, 1, 1)))
    return replace(kernel, op="aten::native_batch_norm_backward", args=args)


_RULES: dict[str, Callable[[KernelDescription], KernelDescription]] = {
    "_scaled_dot_product_flash_attention": _attention,
    "_scaled_dot_product_flash_attention_backward": _attention,
    "_scaled_dot_product_efficient_attention": _attention,
    "_scaled_dot_product_efficient_attention_backward": _attention,
    "_scaled_dot_product_cudnn_attention": _attention,
    "_scaled_dot_product_cudnn_attention_backward": _attention,
    "cudnn_convolution": _convolution,
    "cudnn_convolution_transpose": _convolution,
    "cudnn_batch_norm": _batch_norm,
    "cudnn_batch_norm_backward": _batch_norm_backward,
}
