"""Layer and RMS norm modules and functions of Apex."""

import numbers
from typing import Any

import torch

from interpose.standins import normalization
from interpose.standins.surface import missing_names


def _shape(normalized_shape: Any) -> torch.Size:
    if isinstance(normalized_shape, numbers.Integral):
        normalized_shape = (normalized_shape,)
    return torch.Size(normalized_shape)


class FusedLayerNormAffineFunction(normalization.LayerNormFunction):
    """`apply(input, weight, bias, normalized_shape, eps, memory_efficient)`."""


class FusedRMSNormAffineFunction(normalization.RmsNormFunction):
    """`apply(input, weight, normalized_shape, eps, memory_efficient)`."""


class FusedLayerNormAffineMixedDtypesFunction(normalization.LayerNormFunction):
    """Likewise with weight and bias in fp32."""


class FusedRMSNormAffineMixedDtypesFunction(normalization.RmsNormFunction):
    """Likewise with the weight in fp32."""


def fused_layer_norm_affine(
    input: Any,
    weight: Any,
    bias: Any,
    normalized_shape: Any,
    eps: float = 1e-6,
    memory_efficient: bool = False,
) -> Any:
    """Layer norm with weight and bias."""
    return normalization.layer_norm(input, weight, bias, _shape(normalized_shape), eps, memory_efficient)


def fused_layer_norm(
    input: Any, normalized_shape: Any, eps: float = 1e-6, memory_efficient: bool = False
) -> Any:
    """Layer norm without weight and bias."""
    return normalization.layer_norm(input, None, None, _shape(normalized_shape), eps, memory_efficient)


def fused_rms_norm_affine(
    input: Any, weight: Any, normalized_shape: Any, eps: float = 1e-6, memory_efficient: bool = False
) -> Any:
    """RMS norm with weight."""
    return normalization.rms_norm(input, weight, _shape(normalized_shape), eps, memory_efficient)


def fused_rms_norm(
    input: Any, normalized_shape: Any, eps: float = 1e-6, memory_efficient: bool = False
) -> Any:
    """RMS norm without weight."""
    return normalization.rms_norm(input, None, _shape(normalized_shape), eps, memory_efficient)


mixed_dtype_fused_layer_norm_affine = fused_layer_norm_affine
mixed_dtype_fused_rms_norm_affine = fused_rms_norm_affine


class _FusedNorm(torch.nn.Module):
    """Settings and parameters of either norm."""

    parameter_names: tuple[str, ...] = ("weight",)
    weight: Any
    bias: Any

    def __init__(
        self,
        normalized_shape: Any,
        eps: float = 1e-5,
        elementwise_affine: bool = True,
        memory_efficient: bool = False,
    ) -> None:
        super().__init__()
        self.normalized_shape, self.eps = _shape(normalized_shape), eps
        self.elementwise_affine = elementwise_affine
        self.memory_efficient = memory_efficient
        for name in self.parameter_names:
            made = torch.nn.Parameter(torch.empty(*self.normalized_shape)) if elementwise_affine else None
            self.register_parameter(name, made)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """A weight of ones, a bias of zeros."""
        if self.elementwise_affine:
            for name, parameter in self.named_parameters(recurse=False):
                torch.nn.init.constant_(parameter, 1.0 if name == "weight" else 0.0)

    def extra_repr(self) -> str:
        """As torch.nn.LayerNorm."""
        return f"{self.normalized_shape}, eps={self.eps}, elementwise_affine={self.elementwise_affine}"


class FusedLayerNorm(_FusedNorm):
    """Layer norm over the last dimensions."""

    parameter_names = ("weight", "bias")

    def forward(self, input: Any) -> Any:
        """Returns the normalized input."""
        return normalization.layer_norm(
            input, self.weight, self.bias, self.normalized_shape, self.eps, self.memory_efficient
        )


class FusedRMSNorm(_FusedNorm):
    """RMS norm over the last dimensions."""

    def forward(self, input: Any) -> Any:
        """Returns the normalized input."""
        return normalization.rms_norm(
            input, self.weight, self.normalized_shape, self.eps, self.memory_efficient
        )


class MixedFusedLayerNorm(FusedLayerNorm):
    """Input in 16 bits, weight and bias in fp32."""

    def __init__(self, normalized_shape: Any, eps: float = 1e-5, **kwargs: Any) -> None:
        kwargs.pop("elementwise_affine", None)
        super().__init__(normalized_shape, eps=eps, elementwise_affine=True, **kwargs)


class MixedFusedRMSNorm(FusedRMSNorm):
    """Input in 16 bits, weight in fp32."""

    def __init__(self, normalized_shape: Any, eps: float = 1e-5, **kwargs: Any) -> None:
        kwargs.pop("elementwise_affine", None)
        super().__init__(normalized_shape, eps=eps, elementwise_affine=True, **kwargs)


__getattr__ = missing_names(__name__)
