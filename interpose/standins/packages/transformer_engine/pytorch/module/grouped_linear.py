"""Several linear layers over slices of one input."""

from __future__ import annotations

from typing import Any

import torch

from interpose.standins import grouped_linear
from interpose.standins.surface import missing_names

from .base import TransformerEngineBaseModule, set_tensor_model_parallel_attributes


class GroupedLinear(TransformerEngineBaseModule):
    """`forward(inp, m_splits)`: rows m_splits[i] of the input times weight i."""

    def __init__(
        self, num_gemms: int, in_features: int, out_features: int, sequence_parallel: bool = False,
        fuse_wgrad_accumulation: bool = False, tp_group: Any = None, tp_size: int = 1,
        get_rng_state_tracker: Any = None, rng_tracker_name: str | None = None, init_method: Any = None,
        bias: bool = True, return_bias: bool = False, params_dtype: Any = None,
        parallel_mode: str | None = None, device: Any = "cuda", ub_overlap_rs: bool = False,
        ub_overlap_ag: bool = False, ub_name: str | None = None, delay_wgrad_compute: bool = False,
        save_original_input: bool = False, name: str | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        dtype = torch.get_default_dtype() if params_dtype is None else params_dtype
        self._set_up(
            tp_group=tp_group, tp_size=tp_size, sequence_parallel=sequence_parallel,
            user_buffers={"ub_overlap_rs": ub_overlap_rs, "ub_overlap_ag": ub_overlap_ag},
        )  # fmt: skip
        self.num_gemms, self.ub_name = num_gemms, ub_name
        self.parallel_mode = parallel_mode
        self.use_bias, self.return_bias = bias, return_bias
        self.apply_bias = bias and not return_bias
        self.fuse_wgrad_accumulation = fuse_wgrad_accumulation
        self.delay_wgrad_compute = delay_wgrad_compute
        self.save_original_input = save_original_input
        if parallel_mode == "column":
            out_features //= self.tp_size
        elif parallel_mode == "row":
            in_features //= self.tp_size
        self.in_features, self.out_features = in_features, out_features
        for i in range(num_gemms):
            weight = torch.nn.Parameter(torch.empty(out_features, in_features, dtype=dtype, device=device))
            set_tensor_model_parallel_attributes(weight, True, 1 if parallel_mode == "row" else 0, 1)
            self.register_parameter(f"weight{i}", weight)
            self._fill(weight, init_method, get_rng_state_tracker, rng_tracker_name)
            if bias:
                made = torch.nn.Parameter(torch.zeros(out_features, dtype=dtype, device=device))
                self.register_parameter(f"bias{i}", made)
            else:
                empty = torch.Tensor().to(dtype=dtype, device=device)
                self.register_buffer(f"bias{i}", empty, persistent=False)

    def forward(self, inp: Any, m_splits: Any, is_first_microbatch: bool | None = None) -> Any:
        """The output, and the biases where they are to be returned."""
        weights = [getattr(self, f"weight{i}") for i in range(self.num_gemms)]
        biases = [getattr(self, f"bias{i}") for i in range(self.num_gemms)]
        self.set_activation_dtype(inp)
        used = [w.to(self.activation_dtype) for w in weights]
        precision = self._precision(is_first_microbatch=is_first_microbatch, gemms=self.num_gemms)
        precision.pop("on_backward", None)
        call = grouped_linear.GroupedCall(
            splits=tuple(int(m) for m in m_splits),
            parameters=tuple(weights),
            fuse_wgrad=self.fuse_wgrad_accumulation,
            delayed=self._delayed.append if self.delay_wgrad_compute else None,
            **precision,
        )
        added = [b.to(self.activation_dtype) for b in biases] if self.apply_bias else []
        out = grouped_linear.GroupedLinear.apply(inp.to(self.activation_dtype), call, *used, *added)
        return (out, [b.to(self.activation_dtype) for b in biases]) if self.return_bias else out


__getattr__ = missing_names(__name__)
