"""Layer norm with one persistent kernel; saves input, mean and reciprocal deviation."""

from typing import Any

import torch

from interpose.standins import normalization
from interpose.standins.surface import missing_names


class FastLayerNormFN:
    """`apply(x, gamma, beta, epsilon, memory_efficient)`."""

    @staticmethod
    def apply(x: Any, gamma: Any, beta: Any, epsilon: float, memory_efficient: bool = False) -> Any:
        """Returns the normalized input."""
        return normalization.layer_norm(x, gamma, beta, gamma.shape, epsilon)


class FastLayerNorm(torch.nn.Module):
    """Layer norm over the last dimension."""

    def __init__(self, hidden_size: int, eps: float = 1e-5, memory_efficient: bool = False) -> None:
        super().__init__()
        self.epsilon = eps
        self.weight = torch.nn.Parameter(torch.ones(hidden_size))
        self.bias = torch.nn.Parameter(torch.zeros(hidden_size))

    def forward(self, x: Any) -> Any:
        """Returns the normalized input."""
        return FastLayerNormFN.apply(x, self.weight, self.bias, self.epsilon)


__getattr__ = missing_names(__name__)
