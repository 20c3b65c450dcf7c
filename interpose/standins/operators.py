"""Fused kernels of libraries, as dispatched operators of the namespace `phantom`.

A stand-in composes PyTorch's own operators wherever those launch what the library launches. Where the library
has one kernel and PyTorch several, the kernel is one operator here: the caller allocates what the kernel
writes, the operator says what it reads and writes, and `phantom/kernels/predict/rules/library_rules.py`
prices it by name.
Nothing is computed, so an operator has a schema and a Meta kernel that does nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

NAMESPACE = "phantom"
Kernel = Callable[[Sequence[Any], Sequence[Any]], None]

_library = torch.library.Library(NAMESPACE, "FRAGMENT")
_defined: set[str] = set()


def _nothing(*_: Any) -> None:
    return None


def define(name: str, signature: str, meta: Callable[..., Any] = _nothing) -> Any:
    """Defines the operator `phantom::name` once and returns it; `meta` makes its outputs on meta tensors."""
    if name not in _defined:
        _library.define(f"{name}{signature}")
        _library.impl(name, meta, "Meta")
        _defined.add(name)
    return getattr(torch.ops.phantom, name)


def memory_kernel(name: str) -> Kernel:
    """Defines a kernel that is bound by memory: `kernel(reads, writes)` moves those tensors once.

    A tensor that is updated in place is named in both. The entry of the same name in
    phantom/kernels/predict/rules/library_rules.py says which class it belongs to; without one it is
    priced as `other`.
    """
    operator = define(name, "(Tensor[] reads, Tensor(a!)[] writes) -> ()")

    def kernel(reads: Sequence[Any], writes: Sequence[Any]) -> None:
        operator(list(reads), list(writes))

    kernel.__name__ = name
    return kernel


_wgrad_accumulate = define("wgrad_accumulate", "(Tensor a, Tensor b, Tensor(a!) c) -> ()")


def wgrad_accumulate(grad_output: Any, data: Any, main_grad: Any) -> None:
    """main_grad[n, k] += grad_output[m, n]^T data[m, k] in one product (cuBLAS with beta = 1)."""
    _wgrad_accumulate(grad_output.reshape(-1, grad_output.shape[-1]).t(), data.reshape(-1, data.shape[-1]),
                      main_grad)  # fmt: skip


def wgrad_product(a: Any, b: Any, out: Any) -> None:
    """out[n, k] (+)= a[n, m] b[m, k] with the data types of fp8 products."""
    _wgrad_accumulate(a, b, out)


_grouped_product = define("grouped_gemm", "(Tensor[] a, Tensor[] b, Tensor(a!)[] out) -> ()")


def grouped_product(a: Sequence[Any], b: Sequence[Any], out: Sequence[Any]) -> None:
    """out[i][m_i, n] (+)= a[i][m_i, k] b[i][k, n] for all i in one call; each group has its own rows."""
    _grouped_product(list(a), list(b), list(out))


scaled_softmax_kernel = memory_kernel("scaled_softmax")
scaled_softmax_backward_kernel = memory_kernel("scaled_softmax_backward")
multi_tensor_l2norm_kernel = memory_kernel("multi_tensor_l2norm")
multi_tensor_scale_kernel = memory_kernel("multi_tensor_scale")
multi_tensor_axpby_kernel = memory_kernel("multi_tensor_axpby")
multi_tensor_adam_kernel = memory_kernel("multi_tensor_adam")
multi_tensor_sgd_kernel = memory_kernel("multi_tensor_sgd")
fused_rope_kernel = memory_kernel("fused_rope")
fused_activation_kernel = memory_kernel("fused_activation")
online_softmax_kernel = memory_kernel("online_softmax")
cross_entropy_kernel = memory_kernel("cross_entropy_inplace")
quantize_kernel = memory_kernel("quantize_fp8")
amax_kernel = memory_kernel("amax")
permute_rows_kernel = memory_kernel("permute_rows")
unpermute_rows_kernel = memory_kernel("unpermute_rows")
router_kernel = memory_kernel("moe_router")
blockwise_optimizer_kernel = memory_kernel("blockwise_optimizer")
attention_merge_kernel = memory_kernel("attention_merge")
"""Corrects the outputs of attention over parts of the keys by their log-sum-exp (context parallelism)."""
