"""Several linear layers over slices of one input: Transformer Engine's GroupedLinear (mixture of experts)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from interpose.standins import fp8, linear, operators


@dataclass(frozen=True, kw_only=True)
class GroupedCall:
    """Everything but tensors: rows of each group, the parameters, and how gradients and casts are done."""

    splits: tuple[int, ...]
    parameters: tuple[Any, ...]
    fuse_wgrad: bool
    recipe: str | None = None
    forward_dtype: torch.dtype = torch.float8_e4m3fn
    backward_dtype: torch.dtype = torch.float8_e4m3fn
    delayed: Any = None


class GroupedLinear(torch.autograd.Function):
    """Saves the input (in fp8 where it was cast) and the weights; each pass is one grouped product."""

    @staticmethod
    def forward(ctx: Any, data: Any, call: GroupedCall, *weights_and_biases: Any) -> Any:
        """The products of all groups, one behind the other."""
        count = len(call.splits)
        weights, biases = weights_and_biases[:count], weights_and_biases[count:]
        flat = data.reshape(-1, data.shape[-1])
        out = torch.empty((flat.shape[0], weights[0].shape[0]), dtype=data.dtype, device=data.device)
        source, sides = _cast(flat, weights, call)
        _grouped(source.split(call.splits), [w.t() for w in sides], out.split(call.splits))
        if biases:
            for part, bias in zip(out.split(call.splits), biases):
                part.add_(bias)
        ctx.call, ctx.shape, ctx.has_biases = call, data.shape, bool(biases)
        ctx.save_for_backward(source, *sides, *weights)
        return out.reshape(*data.shape[:-1], out.shape[-1])

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        """Gradients of the input, of every weight and of every bias."""
        call: GroupedCall = ctx.call
        count = len(call.splits)
        source, *saved = ctx.saved_tensors
        sides, weights = saved[:count], saved[count:]
        flat = grad.reshape(-1, grad.shape[-1]).contiguous()
        cast, _ = _cast(flat, (), call, dtype=call.backward_dtype)
        grad_input = None
        if ctx.needs_input_grad[0]:
            grad_input = torch.empty(
                (flat.shape[0], weights[0].shape[1]), dtype=grad.dtype, device=grad.device
            )
            _grouped(cast.split(call.splits), sides, grad_input.split(call.splits))
            grad_input = grad_input.reshape(ctx.shape)
        grad_biases = [part.sum(0) for part in flat.split(call.splits)] if ctx.has_biases else []

        def products() -> list[Any]:
            return _weight_gradients(cast, source, call)

        if call.delayed is not None:
            call.delayed(products)
            grads = [linear.dummy_gradient(p) if call.fuse_wgrad else None for p in call.parameters]
        else:
            grads = products()
        return (grad_input, None, *grads, *grad_biases)


def _cast(flat: Any, weights: Any, call: GroupedCall, *, dtype: torch.dtype | None = None) -> Any:
    if call.recipe is None:
        return flat, list(weights)
    kind = dtype or call.forward_dtype
    cast = fp8.quantize(flat, kind, recipe=call.recipe, columnwise=True)
    sides = [fp8.quantize(w, call.forward_dtype, recipe=call.recipe).data for w in weights]
    return cast.data, sides


def _grouped(a: Any, b: Any, out: Any) -> None:
    chosen = [(x, y, z) for x, y, z in zip(a, b, out) if x.shape[0] and x.shape[1]]
    if chosen:
        operators.grouped_product(*(list(side) for side in zip(*chosen)))


def _weight_gradients(grad: Any, source: Any, call: GroupedCall) -> list[Any]:
    if call.fuse_wgrad:
        targets = [linear.main_gradient(p) for p in call.parameters]
    else:
        targets = [torch.empty(p.shape, dtype=p.dtype, device=p.device) for p in call.parameters]
    _grouped([g.t() for g in grad.split(call.splits)], source.split(call.splits), targets)
    return [linear.dummy_gradient(p) for p in call.parameters] if call.fuse_wgrad else targets
