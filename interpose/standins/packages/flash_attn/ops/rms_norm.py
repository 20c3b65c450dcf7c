"""Stand-in of flash_attn.ops.rms_norm."""

from typing import Any

import torch

from interpose.standins import normalization
from interpose.standins.surface import missing_names


def rms_norm(x: Any, weight: Any, epsilon: float) -> Any:
    """Divides rows by their root mean square, in one kernel."""
    return normalization.rms_norm(x, weight, [x.shape[-1]], epsilon)


class RMSNorm(torch.nn.Module):
    """The norm with its weight."""

    def __init__(self, hidden_size: int, eps: float = 1e-5, device: Any = None, dtype: Any = None) -> None:
        super().__init__()
        self.eps = eps
        self.weight = torch.nn.Parameter(torch.ones(hidden_size, device=device, dtype=dtype))
        self.register_parameter("bias", None)

    def forward(self, x: Any) -> Any:
        """The normalized rows."""
        return rms_norm(x, self.weight, self.eps)


__getattr__ = missing_names(__name__)
