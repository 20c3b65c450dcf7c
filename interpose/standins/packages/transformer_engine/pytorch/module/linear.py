"""The linear layer."""

from __future__ import annotations

from typing import Any

import torch

from interpose.standins import linear
from interpose.standins.surface import missing_names

from .base import TransformerEngineBaseModule, set_tensor_model_parallel_attributes


class _LinearBase(TransformerEngineBaseModule):
    """A weight, split over the group or not, and perhaps a bias."""

    def _make_linear(
        self, in_features: int, out_features: int, *, bias: bool, return_bias: bool, params_dtype: Any,
        parallel_mode: str | None, parameters_split: Any, device: Any, init_method: Any, tracker: Any,
        tracker_name: str | None, fuse_wgrad_accumulation: bool, delay_wgrad_compute: bool,
    ) -> None:  # fmt: skip
        dtype = torch.get_default_dtype() if params_dtype is None else params_dtype
        if parallel_mode not in ("row", "column", None):
            raise ValueError(f"parallel_mode {parallel_mode} not supported")
        self.parallel_mode = parallel_mode
        if parallel_mode == "column":
            out_features = out_features // self.tp_size
        elif parallel_mode == "row":
            in_features = in_features // self.tp_size
        self.in_features, self.out_features = in_features, out_features
        self.use_bias, self.return_bias = bias, return_bias
        self.apply_bias = bias and not return_bias
        self.fuse_wgrad_accumulation = fuse_wgrad_accumulation
        self.delay_wgrad_compute = delay_wgrad_compute
        self.get_rng_state_tracker, self.rng_tracker_name = tracker, tracker_name
        names = _split_names(parameters_split, out_features, self.tp_size if parallel_mode == "column" else 1)
        self.weight_names = [f"{name}weight" for name, _ in names]
        self.bias_names = [f"{name}bias" for name, _ in names]
        for (_, rows), weight_name, bias_name in zip(names, self.weight_names, self.bias_names):
            weight = torch.nn.Parameter(torch.empty(rows, in_features, dtype=dtype, device=device))
            set_tensor_model_parallel_attributes(weight, True, 1 if parallel_mode == "row" else 0, 1)
            self.register_parameter(weight_name, weight)
            self._fill(weight, init_method, tracker, tracker_name)
            if bias:
                made = torch.nn.Parameter(torch.zeros(rows, dtype=dtype, device=device))
                if parallel_mode == "row":
                    made.sequence_parallel = self.sequence_parallel  # type: ignore[attr-defined]
                elif parallel_mode == "column":
                    set_tensor_model_parallel_attributes(made, True, 0, 1)
                self.register_parameter(bias_name, made)
            else:
                self.register_buffer(
                    bias_name, torch.Tensor().to(dtype=dtype, device=device), persistent=False
                )

    def reset_parameters(self, defer_init: bool = False) -> None:
        """Fills the parameters again (after a construction on the meta device)."""
        if defer_init:
            return
        for name in self.weight_names:
            self._fill(getattr(self, name), None, self.get_rng_state_tracker, self.rng_tracker_name)

    def _weight(self) -> tuple[Any, Any]:
        weights = [getattr(self, name) for name in self.weight_names]
        biases = [getattr(self, name) for name in self.bias_names]
        if len(weights) == 1:
            return weights[0], biases[0]
        return torch.cat(weights), torch.cat(biases) if self.use_bias else biases[0]

    def _multiply(self, data: Any, is_first_microbatch: bool | None) -> Any:
        weight, bias = self._weight()
        self.set_activation_dtype(data)
        if weight.dtype != self.activation_dtype:
            weight = weight.to(self.activation_dtype)
        data = data.to(self.activation_dtype)
        precision = self._precision(is_first_microbatch=is_first_microbatch)
        call = linear.LinearCall(
            parallel_mode=self.parallel_mode if self.tp_size > 1 else None,
            sequence_parallel=self.sequence_parallel,
            group=self.tp_group,
            fuse_wgrad=self.fuse_wgrad_accumulation,
            weight=getattr(self, self.weight_names[0]),
            cached_weight=self._cast_weight("weight", weight, precision, is_first_microbatch),
            delayed=self._delayed.append if self.delay_wgrad_compute else None,
            **precision,
        )
        used_bias = bias.to(self.activation_dtype) if self.apply_bias else None
        return linear.Linear.apply(data, weight, used_bias, call), bias


class Linear(_LinearBase):
    """y = x W^T + b, with the collectives of tensor parallelism."""

    def __init__(
        self, in_features: int, out_features: int, sequence_parallel: bool = False,
        fuse_wgrad_accumulation: bool = False, tp_group: Any = None, tp_size: int = 1,
        get_rng_state_tracker: Any = None, init_method: Any = None, bias: bool = True,
        return_bias: bool = False, params_dtype: Any = None, parallel_mode: str | None = None,
        parameters_split: Any = None, device: Any = "cuda", ub_overlap_ag: bool = False,
        ub_overlap_rs: bool = False, ub_overlap_rs_dgrad: bool = False, ub_bulk_dgrad: bool = False,
        ub_bulk_wgrad: bool = False, ub_name: str | None = None, rng_tracker_name: str | None = None,
        delay_wgrad_compute: bool = False, symmetric_ar_type: str | None = None,
        save_original_input: bool = False, name: str | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.ub_name = ub_name
        self.save_original_input = save_original_input
        self._set_up(
            tp_group=tp_group, tp_size=tp_size, sequence_parallel=sequence_parallel,
            symmetric_ar_type=symmetric_ar_type,
            user_buffers={
                "ub_overlap_ag": ub_overlap_ag, "ub_overlap_rs": ub_overlap_rs,
                "ub_overlap_rs_dgrad": ub_overlap_rs_dgrad, "ub_bulk_dgrad": ub_bulk_dgrad,
                "ub_bulk_wgrad": ub_bulk_wgrad,
            },
        )  # fmt: skip
        self._make_linear(
            in_features, out_features, bias=bias, return_bias=return_bias, params_dtype=params_dtype,
            parallel_mode=parallel_mode, parameters_split=parameters_split, device=device,
            init_method=init_method, tracker=get_rng_state_tracker, tracker_name=rng_tracker_name,
            fuse_wgrad_accumulation=fuse_wgrad_accumulation, delay_wgrad_compute=delay_wgrad_compute,
        )  # fmt: skip

    def forward(self, inp: Any, is_first_microbatch: bool | None = None, **_: Any) -> Any:
        """The output, and the bias where it is to be returned."""
        out, bias = self._multiply(inp, is_first_microbatch)
        return (out, bias.to(self.activation_dtype)) if self.return_bias else out


def _split_names(parameters_split: Any, out_features: int, tp_size: int) -> list[tuple[str, int]]:
    """Prefixes of the weights' names and their rows."""
    if parameters_split is None:
        return [("", out_features)]
    if isinstance(parameters_split, dict):
        return [
            (name if name.endswith("_") else f"{name}_", rows // tp_size)
            for name, rows in parameters_split.items()
        ]
    share = out_features // len(parameters_split)
    return [(name if name.endswith("_") else f"{name}_", share) for name in parameters_split]


__getattr__ = missing_names(__name__)
