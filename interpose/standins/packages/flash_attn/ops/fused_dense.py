"""Stand-in of flash_attn.ops.fused_dense: products whose bias and activation are part of cuBLAS' epilogue."""

from typing import Any

import torch
import torch.nn.functional as F

from interpose.standins.surface import missing_names


class FusedDense(torch.nn.Linear):
    """A linear layer."""

    def __init__(
        self, in_features: int, out_features: int, bias: bool = True, return_residual: bool = False,
        device: Any = None, dtype: Any = None,
    ) -> None:  # fmt: skip
        super().__init__(in_features, out_features, bias=bias, device=device, dtype=dtype)
        self.return_residual = return_residual

    def forward(self, x: Any, process_group: Any = None) -> Any:
        """The product, and the input where wanted."""
        out = F.linear(x, self.weight, self.bias)
        return (out, x) if self.return_residual else out


class FusedMLP(torch.nn.Module):
    """Two linear layers with GELU between them."""

    def __init__(
        self, in_features: int, hidden_features: int | None = None, out_features: int | None = None,
        bias1: bool = True, bias2: bool = True, activation: str = "gelu_approx",
        return_residual: bool = False, checkpoint_lvl: int = 0, heuristic: Any = "auto", device: Any = None,
        dtype: Any = None,
    ) -> None:  # fmt: skip
        super().__init__()
        hidden = hidden_features or in_features * 4
        self.activation, self.return_residual = activation, return_residual
        self.fc1 = torch.nn.Linear(in_features, hidden, bias=bias1, device=device, dtype=dtype)
        self.fc2 = torch.nn.Linear(
            hidden, out_features or in_features, bias=bias2, device=device, dtype=dtype
        )

    def forward(self, x: Any, process_group: Any = None) -> Any:
        """The output, and the input where wanted."""
        hidden = self.fc1(x)
        if self.activation == "relu":
            hidden = F.relu(hidden)
        else:
            hidden = F.gelu(hidden, approximate="tanh")
        out = self.fc2(hidden)
        return (out, x) if self.return_residual else out


__getattr__ = missing_names(__name__)
