"""A norm and a linear layer as one module."""

from __future__ import annotations

from typing import Any

import torch

from interpose.standins import normalization
from interpose.standins.surface import missing_names

from .linear import _LinearBase


class LayerNormLinear(_LinearBase):
    """y = norm(x) W^T + b; saves the norm's input, statistics and output (gathered again in backward)."""

    def __init__(
        self, in_features: int, out_features: int, eps: float = 1e-5, sequence_parallel: bool = False,
        fuse_wgrad_accumulation: bool = False, tp_group: Any = None, tp_size: int = 1,
        get_rng_state_tracker: Any = None, init_method: Any = None, bias: bool = True,
        normalization: str = "LayerNorm", return_bias: bool = False, params_dtype: Any = None,
        parallel_mode: str | None = None, return_layernorm_output: bool = False,
        return_layernorm_output_gathered: bool = False, parameters_split: Any = None,
        zero_centered_gamma: bool = False, device: Any = "cuda", ub_overlap_ag: bool = False,
        ub_overlap_rs: bool = False, ub_overlap_rs_dgrad: bool = False, ub_bulk_wgrad: bool = False,
        ub_bulk_dgrad: bool = False, ub_name: str | None = None, rng_tracker_name: str | None = None,
        delay_wgrad_compute: bool = False, symmetric_ar_type: str | None = None, name: str | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.ub_name, self.eps = ub_name, eps
        self.normalization, self.zero_centered_gamma = normalization, zero_centered_gamma
        self.return_layernorm_output = return_layernorm_output
        self._set_up(
            tp_group=tp_group, tp_size=tp_size, sequence_parallel=sequence_parallel,
            symmetric_ar_type=symmetric_ar_type,
            user_buffers={
                "ub_overlap_ag": ub_overlap_ag, "ub_overlap_rs": ub_overlap_rs,
                "ub_overlap_rs_dgrad": ub_overlap_rs_dgrad, "ub_bulk_dgrad": ub_bulk_dgrad,
                "ub_bulk_wgrad": ub_bulk_wgrad,
            },
        )  # fmt: skip
        dtype = torch.get_default_dtype() if params_dtype is None else params_dtype

        def norm_parameter() -> Any:
            made = torch.nn.Parameter(torch.zeros(in_features, dtype=dtype, device=device))
            made.sequence_parallel = self.sequence_parallel  # type: ignore[attr-defined]
            return made

        self.layer_norm_weight = norm_parameter()
        if not zero_centered_gamma and not self.layer_norm_weight.is_meta:
            torch.nn.init.ones_(self.layer_norm_weight)
        if normalization == "LayerNorm":
            self.layer_norm_bias = norm_parameter()
        else:
            self.layer_norm_bias = None
        self._make_linear(
            in_features, out_features, bias=bias, return_bias=return_bias, params_dtype=params_dtype,
            parallel_mode=parallel_mode, parameters_split=parameters_split, device=device,
            init_method=init_method, tracker=get_rng_state_tracker, tracker_name=rng_tracker_name,
            fuse_wgrad_accumulation=fuse_wgrad_accumulation, delay_wgrad_compute=delay_wgrad_compute,
        )  # fmt: skip

    def _normalize(self, inp: Any) -> Any:
        shape = (inp.shape[-1],)
        if self.normalization == "RMSNorm":
            return normalization.rms_norm(inp, self.layer_norm_weight, shape, self.eps)
        return normalization.layer_norm(inp, self.layer_norm_weight, self.layer_norm_bias, shape, self.eps)

    def forward(self, inp: Any, is_first_microbatch: bool | None = None, **_: Any) -> Any:
        """The output; the bias and the norm's output where they are to be returned."""
        normalized = self._normalize(inp)
        out, bias = self._multiply(normalized, is_first_microbatch)
        results = [out]
        if self.return_bias:
            results.append(bias.to(self.activation_dtype))
        if self.return_layernorm_output:
            results.append(normalized)
        return tuple(results) if len(results) > 1 else out


__getattr__ = missing_names(__name__)
