"""The linear layer of Transformer Engine as one autograd function: collectives, casts, products in its order.

Source: transformer_engine/pytorch/module/linear.py (`_Linear`). Column-parallel with sequence parallelism
gathers the input before the product, and again in backward beside the product of the input's gradient;
row-parallel reduces (and scatters) the output.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from interpose.standins import fp8, operators
from interpose.standins import tensor_parallel as tp


@dataclass(frozen=True, kw_only=True)
class LinearCall:
    """Everything but tensors. `weight` is the module's parameter (its main gradient is looked up there);
    `recipe` is None or the fp8 recipe's kind; `delayed` takes the weight gradient's product where it is to be
    done later.
    """

    parallel_mode: str | None
    sequence_parallel: bool
    group: Any
    fuse_wgrad: bool
    weight: Any
    recipe: str | None = None
    forward_dtype: torch.dtype = torch.float8_e4m3fn
    backward_dtype: torch.dtype = torch.float8_e4m3fn
    cached_weight: Any = None
    delayed: Any = None
    on_backward: Any = None
    recompute: bool = False

    @property
    def gathers(self) -> bool:
        """Whether the input is gathered along the sequence."""
        return self.parallel_mode == "column" and self.sequence_parallel


class Linear(torch.autograd.Function):
    """Saves the rank's own part of the input (in fp8 where it was cast) and the weight."""

    @staticmethod
    def forward(ctx: Any, data: Any, weight: Any, bias: Any, call: LinearCall) -> Any:
        """The product, reduced over the group where the rows are split."""
        shape = data.shape
        flat = data.reshape(-1, shape[-1])
        out_dtype = data.dtype
        if call.recipe is None:
            total, _ = tp.gather_first(flat, call.group) if call.gathers else (flat, None)
            out = torch.mm(total, weight.t()) if bias is None else torch.addmm(bias, total, weight.t())
            ctx.save_for_backward(flat, weight)
        else:
            needs = weight.requires_grad
            cast = fp8.quantize(
                flat, call.forward_dtype, recipe=call.recipe, columnwise=needs and not call.gathers
            )
            total = cast.data
            if call.gathers:
                total, _ = tp.gather_first(cast.data, call.group)
            cast_weight = call.cached_weight or fp8.quantize(weight, call.forward_dtype, recipe=call.recipe)
            out = fp8.product(total, cast_weight.data, out_dtype, bias=bias)
            keep = cast.transpose if cast.transpose is not None else cast.data
            ctx.save_for_backward(keep if needs else None, weight, cast_weight.data, cast_weight.transpose)
            ctx.kept_transposed = cast.transpose is not None
        ctx.call, ctx.shape, ctx.has_bias = call, shape, bias is not None
        ctx.rows = flat.shape[0]
        if call.parallel_mode == "row":
            reduce = tp.reduce_scatter_first if call.sequence_parallel else tp.all_reduce
            out, _ = reduce(out, call.group)
        return out.reshape(-1, *shape[1:-1], out.shape[-1])

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        """Gradients of input, weight and bias; collectives run beside the products that do not need them."""
        call: LinearCall = ctx.call
        kept, weight, *weights = ctx.saved_tensors
        grad = grad.reshape(-1, grad.shape[-1])
        if call.parallel_mode == "row" and call.sequence_parallel:
            grad, _ = tp.gather_first(grad, call.group)
        grad_bias = grad.sum(0) if ctx.has_bias else None
        wants_input, wants_weight = ctx.needs_input_grad[0], weight.requires_grad
        total, gathering = kept, None
        if call.gathers and wants_weight:
            total, gathering = tp.gather_first(kept, call.group, async_op=True)
        cast = None
        if call.recipe is not None:
            cast = fp8.quantize(grad, call.backward_dtype, recipe=call.recipe)
        grad_input = None
        reducing: Any = None
        if wants_input:
            if cast is None:
                grad_input = torch.mm(grad, weight)
            else:
                turned = weights[1] if weights[1] is not None else weights[0].t().contiguous()
                grad_input = fp8.product(cast.data, turned, grad.dtype)
        tp.wait(gathering)
        if wants_input and call.parallel_mode == "column":
            reduce = tp.reduce_scatter_first if call.sequence_parallel else tp.all_reduce
            grad_input, reducing = reduce(grad_input, call.group, async_op=True)
        grad_weight = None
        if wants_weight:
            if cast is not None and call.gathers and fp8.needs_transpose():
                transposed = torch.empty_like(total).reshape(total.shape[1], total.shape[0])
                operators.quantize_kernel([total], [transposed])
                total = transposed

            def product() -> Any:
                return weight_gradient(grad, total, call, cast)

            if call.delayed is not None:
                call.delayed(product)
                grad_weight = dummy_gradient(call.weight) if call.fuse_wgrad else None
            else:
                grad_weight = product()
        tp.wait(reducing)
        if call.on_backward is not None:
            call.on_backward()
        if grad_input is not None:
            grad_input = grad_input.reshape(ctx.shape)
        return grad_input, grad_weight, grad_bias, None


def weight_gradient(grad: Any, total: Any, call: LinearCall, cast: Any) -> Any:
    """The weight's gradient, added to its main gradient where that is fused; then a dummy is returned."""
    parameter = call.weight
    main = main_gradient(parameter) if call.fuse_wgrad else None
    if cast is None:
        if main is None:
            return torch.mm(grad.t(), total)
        operators.wgrad_accumulate(grad, total, main)
    else:
        left = cast.transpose if cast.transpose is not None else cast.data.t()
        right = total if total.shape[0] != grad.shape[0] else total.t()
        if main is None:
            out = torch.empty(parameter.shape, dtype=parameter.dtype, device=parameter.device)
            operators.wgrad_product(left, right.t(), out)
            return out
        operators.wgrad_product(left, right.t(), main)
    return dummy_gradient(parameter)


def main_gradient(parameter: Any) -> Any:
    """The buffer that the framework accumulates the gradient in."""
    if hasattr(parameter, "__fsdp_param__"):
        return parameter.get_main_grad()
    return parameter.main_grad


_dummies: dict[tuple[Any, ...], Any] = {}


def get_dummy_wgrad(shape: list[int], dtype: torch.dtype, zero: bool = False) -> Any:
    """A gradient that nobody reads, of the right shape; one allocation for all parameters of that shape."""
    key = (tuple(shape), dtype)
    if key not in _dummies:
        _dummies[key] = torch.empty(shape, dtype=dtype, device="cuda", requires_grad=False)
    if zero:
        _dummies[key].fill_(0)
    return _dummies[key].detach()


def dummy_gradient(parameter: Any) -> Any:
    """What autograd gets for a parameter whose main gradient has been added to already."""
    if not hasattr(parameter, "grad_added_to_main_grad"):
        return None
    parameter.grad_added_to_main_grad = True
    zero = getattr(parameter, "zero_out_wgrad", False)
    return get_dummy_wgrad(list(parameter.shape), parameter.dtype, zero=zero)
