"""Layer norm and RMS norm."""

from __future__ import annotations

from typing import Any

import torch

from interpose.standins import normalization
from interpose.standins.surface import missing_names


def _shape(given: Any) -> tuple[int, ...]:
    return tuple(given) if isinstance(given, (tuple, list, torch.Size)) else (int(given),)


class RMSNorm(torch.nn.Module):
    """y = x / rms(x) * w."""

    def __init__(
        self, normalized_shape: Any = None, eps: float = 1e-5, sequence_parallel: bool | None = None,
        params_dtype: Any = None, zero_centered_gamma: bool = False, hidden_size: int | None = None,
        device: Any = "cuda", dtype: Any = None, **_: Any,
    ) -> None:  # fmt: skip
        super().__init__()
        self.shape = _shape(normalized_shape if normalized_shape is not None else hidden_size)
        self.eps, self.zero_centered_gamma = eps, zero_centered_gamma
        self.sequence_parallel = sequence_parallel
        self._dtype = dtype or params_dtype or torch.get_default_dtype()
        self._make(device)
        if not self.weight.is_meta:
            self.reset_parameters()

    def _make(self, device: Any) -> None:
        self.weight = self._parameter(device)

    def _parameter(self, device: Any) -> Any:
        made = torch.nn.Parameter(torch.zeros(self.shape, dtype=self._dtype, device=device))
        if self.sequence_parallel is not None:
            made.sequence_parallel = self.sequence_parallel  # type: ignore[attr-defined]
        return made

    def reset_parameters(self, **_: Any) -> None:
        """Ones (zeros where gamma is zero-centred)."""
        torch.nn.init.constant_(self.weight, 0.0 if self.zero_centered_gamma else 1.0)

    def forward(self, x: Any) -> Any:
        """The normalized input."""
        return normalization.rms_norm(x, self.weight, self.shape, self.eps)


class LayerNorm(RMSNorm):
    """y = (x - mean) / deviation * w + b."""

    def _make(self, device: Any) -> None:
        super()._make(device)
        self.bias = self._parameter(device)

    def forward(self, x: Any) -> Any:
        """The normalized input."""
        return normalization.layer_norm(x, self.weight, self.bias, self.shape, self.eps)


__getattr__ = missing_names(__name__)
