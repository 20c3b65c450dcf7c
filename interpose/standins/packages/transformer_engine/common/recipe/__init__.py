"""How tensors are cast to fp8."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple

from interpose.standins.surface import missing_names


class _FormatHelper(NamedTuple):
    max_fwd: float
    max_bwd: float


class Format(Enum):
    """Number formats of forward and backward tensors."""

    E2M1 = _FormatHelper(max_fwd=6, max_bwd=6)
    E4M3 = _FormatHelper(max_fwd=448, max_bwd=448)
    E5M2 = _FormatHelper(max_fwd=57344, max_bwd=57344)
    HYBRID = _FormatHelper(max_fwd=448, max_bwd=57344)


@dataclass(frozen=True)
class MMParams:
    """Parameters of products."""

    use_split_accumulator: bool = True


@dataclass(frozen=True)
class QParams:
    """Parameters of casts."""

    power_2_scale: bool = False
    amax_epsilon: float = 0.0


class Recipe:
    """Base class; `kind` is what the stand-in's casts go by."""

    kind = "delayed"

    def nvfp4(self) -> bool:
        """Whether this is that recipe."""
        return isinstance(self, NVFP4BlockScaling)

    def mxfp8(self) -> bool:
        """Whether this is that recipe."""
        return isinstance(self, MXFP8BlockScaling)

    def delayed(self) -> bool:
        """Whether this is that recipe."""
        return isinstance(self, DelayedScaling)

    def float8_current_scaling(self) -> bool:
        """Whether this is that recipe."""
        return isinstance(self, Float8CurrentScaling)

    def float8_per_tensor_scaling(self) -> bool:
        """Whether there is one scale per tensor."""
        return isinstance(self, (DelayedScaling, Float8CurrentScaling))

    def float8_block_scaling(self) -> bool:
        """Whether this is that recipe."""
        return isinstance(self, Float8BlockScaling)

    def custom(self) -> bool:
        """Whether this is that recipe."""
        return isinstance(self, CustomRecipe)


@dataclass
class DelayedScaling(Recipe):
    """Scales from the maxima of earlier steps."""

    kind = "delayed"
    margin: int = 0
    interval: int = -1
    fp8_format: Format = Format.HYBRID
    amax_history_len: int = 1024
    amax_compute_algo: Any = "max"
    override_linear_precision: tuple[bool, bool, bool] = (False, False, False)
    scaling_factor_compute_algo: Any = None
    reduce_amax: bool = True
    fp8_dpa: bool = False
    fp8_mha: bool = False
    params_dtype: Any = None
    device: Any = None


@dataclass
class Float8CurrentScaling(Recipe):
    """Scales from the tensor itself, which is read once more."""

    kind = "current"
    fp8_format: Format = Format.HYBRID
    use_power_2_scales: bool = os.environ.get("NVTE_FP8_CURRENT_SCALING_POWER_2_SCALES", "0") == "1"
    fp8_quant_fwd_inp: QParams = field(default_factory=QParams)
    fp8_quant_fwd_weight: QParams = field(default_factory=QParams)
    fp8_quant_bwd_grad: QParams = field(default_factory=QParams)
    fp8_dpa: bool = False
    fp8_mha: bool = False


@dataclass
class MXFP8BlockScaling(Recipe):
    """One power-of-two scale per 32 values."""

    kind = "mxfp8"
    margin: int = 0
    fp8_format: Format = Format.E4M3
    fp8_dpa: bool = False
    fp8_mha: bool = False


@dataclass
class Float8BlockScaling(Recipe):
    """One scale per 128 values or 128 x 128 block."""

    kind = "block"
    fp8_format: Format = Format.E4M3
    x_block_scaling_dim: int = 1
    w_block_scaling_dim: int = 2
    grad_block_scaling_dim: int = 1
    fp8_dpa: bool = False
    fp8_mha: bool = False


@dataclass
class NVFP4BlockScaling(Recipe):
    """4-bit values: known, not covered."""

    kind = "nvfp4"
    fp4_format: Format = Format.E2M1
    fp8_format: Format = Format.E4M3
    fp8_dpa: bool = False
    fp8_mha: bool = False


@dataclass
class CustomRecipe(Recipe):
    """A user's own quantizers: known, not covered."""

    kind = "custom"
    qfactory: Any = None
    fp8_dpa: bool = False
    fp8_mha: bool = False


__getattr__ = missing_names(__name__)
