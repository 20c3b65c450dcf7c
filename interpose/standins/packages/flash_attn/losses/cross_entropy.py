"""Stand-in of flash_attn.losses.cross_entropy: one Triton kernel each way."""

from typing import Any

import torch

from interpose.standins import operators
from interpose.standins.surface import missing_names, not_covered


class _Loss(torch.autograd.Function):
    """Saves logits, log-sum-exp per row and labels; backward writes over the logits where it may."""

    @staticmethod
    def forward(ctx: Any, logits: Any, labels: Any, inplace: bool) -> Any:
        """Losses of the rows, in fp32."""
        rows = logits.shape[0]
        losses = torch.empty(rows, dtype=torch.float32, device=logits.device)
        lse = torch.empty(rows, dtype=torch.float32, device=logits.device)
        operators.online_softmax_kernel([logits, labels], [losses, lse])
        ctx.save_for_backward(logits, lse, labels)
        ctx.inplace = inplace
        return losses

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        """Gradient of the logits."""
        logits, lse, labels = ctx.saved_tensors
        out = logits if ctx.inplace else torch.empty_like(logits)
        operators.cross_entropy_kernel([logits, lse, labels, grad], [out])
        return out, None, None


class CrossEntropyLoss(torch.nn.Module):
    """Cross entropy of [rows, classes]."""

    def __init__(
        self, ignore_index: int = -100, reduction: str = "mean", label_smoothing: float = 0.0,
        logit_scale: float = 1.0, lse_square_scale: float = 0.0, inplace_backward: bool = False,
        process_group: Any = None, return_z_loss: bool = False,
    ) -> None:  # fmt: skip
        super().__init__()
        if process_group is not None or return_z_loss:
            raise not_covered(__name__, "CrossEntropyLoss", why="(process_group, return_z_loss)")
        self.ignore_index, self.reduction, self.inplace = ignore_index, reduction, inplace_backward

    def forward(self, input: Any, target: Any, precomputed_lse: Any = None) -> Any:
        """The loss, reduced as asked for."""
        losses = _Loss.apply(input, target, self.inplace)
        if self.reduction == "mean":
            return losses.sum() / (target != self.ignore_index).sum()
        return losses.sum() if self.reduction == "sum" else losses


__getattr__ = missing_names(__name__)
