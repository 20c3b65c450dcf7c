"""Cross entropy over a vocabulary that is split over the tensor-parallel group."""

from __future__ import annotations

from typing import Any

import torch

from interpose.standins import operators
from interpose.standins import tensor_parallel as tp
from interpose.standins.surface import missing_names


class CrossEntropyFunction(torch.autograd.Function):
    """One pass for the rows' maximum and sum, a gather of those, one pass that writes the gradient over the
    logits. Saves the logits."""

    @staticmethod
    def forward(
        ctx: Any, logits: Any, target: Any, label_smoothing: float = 0.0, reduce_loss: bool = False,
        group: Any = None, ignore_idx: int = -100, is_cg_capturable: bool = False,
    ) -> Any:  # fmt: skip
        """The losses of the rows, or their mean."""
        rows = logits.shape[0] * logits.shape[1]
        device = logits.device
        losses = torch.zeros(rows, dtype=torch.float32, device=device)
        statistics = torch.zeros(rows * 3, dtype=torch.float32, device=device)
        operators.online_softmax_kernel([logits, target], [statistics])
        if tp.size_of(group) > 1:
            statistics, _ = tp.gather_first(statistics, group)
        operators.cross_entropy_kernel([logits, target, statistics], [logits, losses])
        ctx.save_for_backward(logits.detach())
        ctx.is_cg_capturable = is_cg_capturable
        return losses.mean() if reduce_loss else losses.view(logits.shape[0], logits.shape[1])

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        """The gradient is there already; it is scaled in place."""
        (logits,) = ctx.saved_tensors
        operators.fused_activation_kernel([logits, grad], [logits])
        return logits, None, None, None, None, None, None


def parallel_cross_entropy(
    inp: Any, target: Any, label_smoothing: float = 0.0, reduce_loss: bool = False,
    dist_process_group: Any = None, ignore_idx: int = -100, is_cg_capturable: bool = False, **kwargs: Any,
) -> Any:  # fmt: skip
    """Losses of [s, b, vocabulary part] logits."""
    inp = kwargs.pop("_input", inp)
    return CrossEntropyFunction.apply(
        inp, target, label_smoothing, reduce_loss, dist_process_group, ignore_idx, is_cg_capturable
    )


__getattr__ = missing_names(__name__)
