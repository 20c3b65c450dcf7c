"""The products with their gradients."""

from typing import Any

import torch

from interpose.standins.surface import missing_names

from . import backend


class GroupedGemm(torch.autograd.Function):
    """Saves both operands and the sizes."""

    @staticmethod
    def forward(ctx: Any, a: Any, b: Any, batch_sizes: Any, trans_b: bool) -> Any:
        """The products of all groups."""
        ctx.save_for_backward(a, b, batch_sizes)
        ctx.trans_b = trans_b
        return backend.gmm(a, b, batch_sizes, trans_a=False, trans_b=trans_b)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        """A grouped product for each operand that needs a gradient."""
        grad = grad.contiguous()
        a, b, batch_sizes = ctx.saved_tensors
        grad_a = grad_b = None
        if ctx.needs_input_grad[0]:
            grad_a = backend.gmm(grad, b, batch_sizes, trans_a=False, trans_b=not ctx.trans_b)
        if ctx.needs_input_grad[1]:
            left, right = (grad, a) if ctx.trans_b else (a, grad)
            grad_b = backend.gmm(left, right, batch_sizes, trans_a=True, trans_b=False)
        return grad_a, grad_b, None, None


def gmm(a: Any, b: Any, batch_sizes: Any, trans_b: bool = False) -> Any:
    """a[tokens, k] b[groups, k, n], `batch_sizes` rows a group (known on the host)."""
    return GroupedGemm.apply(a, b, batch_sizes, trans_b)


__getattr__ = missing_names(__name__)
