"""Routing of tokens to experts. Values come from PyTorch's own operators, so that the counts of tokens agree
with what the run's routing model says (top-k of numbers that nobody computed)."""

from __future__ import annotations

from typing import Any

import torch

from interpose.standins import operators
from interpose.standins.surface import missing_names


class _Scores(torch.autograd.Function):
    """One kernel for scores and probabilities; saves its output and the routing map."""

    @staticmethod
    def forward(ctx: Any, logits: Any, routing_map: Any) -> Any:
        out = torch.empty_like(logits)
        operators.router_kernel([logits, routing_map], [out])
        ctx.save_for_backward(out, routing_map)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        probs, routing_map = ctx.saved_tensors
        out = torch.empty_like(probs)
        operators.router_kernel([grad, probs, routing_map], [out])
        return out, None


def fused_topk_with_score_function(
    logits: Any, topk: int, use_pre_softmax: bool, num_groups: int | None = None,
    group_topk: int | None = None, scaling_factor: float | None = None, score_function: str = "softmax",
    expert_bias: Any = None,
) -> tuple[Any, Any]:  # fmt: skip
    """Probabilities [tokens, experts] and the map of the chosen experts."""
    flat = logits.reshape(-1, logits.shape[-1])
    indices = torch.topk(flat.detach(), k=topk, dim=1).indices
    routing_map = torch.zeros_like(flat, dtype=torch.bool).scatter(1, indices, True)
    return _Scores.apply(flat, routing_map), routing_map


def fused_compute_score_for_moe_aux_loss(
    logits: Any, topk: int, score_function: str = "softmax"
) -> tuple[Any, Any]:
    """Map of the chosen experts, and the scores for the balancing loss."""
    probs, routing_map = fused_topk_with_score_function(logits, topk, False, score_function=score_function)
    return routing_map, probs


class _AuxLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, probs: Any, tokens_per_expert: Any) -> Any:
        out = torch.empty((), dtype=probs.dtype, device=probs.device)
        operators.router_kernel([probs, tokens_per_expert], [out])
        ctx.save_for_backward(tokens_per_expert)
        ctx.shape = probs.shape
        return out

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        (tokens_per_expert,) = ctx.saved_tensors
        out = torch.empty(ctx.shape, dtype=grad.dtype, device=grad.device)
        operators.router_kernel([tokens_per_expert, grad], [out])
        return out, None


def fused_moe_aux_loss(
    probs: Any, tokens_per_expert: Any, total_num_tokens: int, num_experts: int, topk: int, coeff: float
) -> Any:
    """The balancing loss."""
    return _AuxLoss.apply(probs, tokens_per_expert)


__getattr__ = missing_names(__name__)
