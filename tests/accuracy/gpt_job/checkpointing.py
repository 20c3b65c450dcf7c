"""Recomputation of activations in the backward pass: none, all or half of the blocks, or chosen operators."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

RECOMPUTE = ("none", "full", "layer", "op")

_ATTENTION = (
    torch.ops.aten._scaled_dot_product_flash_attention.default,
    torch.ops.aten._scaled_dot_product_efficient_attention.default,
    torch.ops.aten._scaled_dot_product_cudnn_attention.default,
)


def _policy() -> Callable[..., CheckpointPolicy]:
    """Keep attention and every second matrix product, recompute the rest (as TorchTitan's selective "op")."""
    products = {False: 0, True: 0}

    def decide(context: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        if op is torch.ops.aten.mm.default:
            products[context.is_recompute] += 1
            keep = products[context.is_recompute] % 2 == 1
        else:
            keep = op in _ATTENTION
        return CheckpointPolicy.MUST_SAVE if keep else CheckpointPolicy.PREFER_RECOMPUTE

    return decide


def run_blocks(
    blocks: Iterable[Callable[..., Tensor]], x: Tensor, extra: Tensor | None, *, recompute: str
) -> Tensor:
    """Apply *blocks* to x in turn, each with *extra*, recomputing as *recompute* says."""
    for number, block in enumerate(blocks):
        if recompute == "none" or (recompute == "layer" and number % 2 == 1):
            x = block(x, extra)
        elif recompute == "op":
            contexts = partial(create_selective_checkpoint_contexts, _policy())
            x = checkpoint(block, x, extra, use_reentrant=False, context_fn=contexts)
        else:
            x = checkpoint(block, x, extra, use_reentrant=False)
    return x
