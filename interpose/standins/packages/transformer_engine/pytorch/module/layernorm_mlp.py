"""Norm, linear, activation, linear as one module."""

from __future__ import annotations

from typing import Any

import torch

from interpose.standins import activation as activations
from interpose.standins.surface import missing_names, not_covered

from .layernorm_linear import LayerNormLinear
from .linear import Linear


class LayerNormMLP(torch.nn.Module):
    """The feed-forward block; parameters are named as the library names them."""

    def __init__(
        self, hidden_size: int, ffn_hidden_size: int, eps: float = 1e-5, sequence_parallel: bool = False,
        return_bias: bool = False, get_rng_state_tracker: Any = None, tp_group: Any = None,
        tp_size: int = 1, init_method: Any = None, bias: bool = True, normalization: str = "LayerNorm",
        activation: str = "gelu", output_layer_init_method: Any = None,
        fuse_wgrad_accumulation: bool = False, params_dtype: Any = None,
        return_layernorm_output: bool = False, seq_length: int | None = None,
        micro_batch_size: int | None = None, set_parallel_mode: bool = False,
        zero_centered_gamma: bool = False, device: Any = "cuda", **other: Any,
    ) -> None:  # fmt: skip
        super().__init__()
        if activation not in activations.GATED | activations.PLAIN:
            raise not_covered(
                "transformer_engine.pytorch", "LayerNormMLP", why=f"(activation {activation!r})"
            )
        if return_layernorm_output:
            raise not_covered("transformer_engine.pytorch", "LayerNormMLP", why="(return_layernorm_output)")
        self.gated = activation in activations.GATED
        common: dict[str, Any] = {
            "sequence_parallel": sequence_parallel, "get_rng_state_tracker": get_rng_state_tracker,
            "tp_group": tp_group, "tp_size": tp_size, "bias": bias, "params_dtype": params_dtype,
            "fuse_wgrad_accumulation": fuse_wgrad_accumulation, "device": device,
        }  # fmt: skip
        buffers = {name: value for name, value in other.items() if name.startswith("ub_") and value}
        self._fc1 = LayerNormLinear(
            hidden_size, ffn_hidden_size * (2 if self.gated else 1), eps=eps, init_method=init_method,
            normalization=normalization, zero_centered_gamma=zero_centered_gamma,
            parallel_mode="column" if set_parallel_mode else None, **common, **buffers,
        )  # fmt: skip
        self._fc2 = Linear(
            ffn_hidden_size, hidden_size, init_method=output_layer_init_method, return_bias=return_bias,
            parallel_mode="row" if set_parallel_mode else None, **common,
        )  # fmt: skip
        # The parameters belong to this module; the two halves only use them.
        halves = self.__dict__["_modules"]
        self.__dict__["_halves"] = (halves.pop("_fc1"), halves.pop("_fc2"))
        fc1, fc2 = self.__dict__["_halves"]
        self.layer_norm_weight, self.layer_norm_bias = fc1.layer_norm_weight, fc1.layer_norm_bias
        self.fc1_weight, self.fc2_weight = fc1.weight, fc2.weight
        if bias:
            self.fc1_bias, self.fc2_bias = fc1.bias, fc2.bias

    def forward(self, inp: Any, is_first_microbatch: bool | None = None, **_: Any) -> Any:
        """The output, and the last bias where it is to be returned."""
        fc1, fc2 = self.__dict__["_halves"]
        for half, prefix in ((fc1, "fc1"), (fc2, "fc2")):
            half._parameters["weight"] = self._parameters[f"{prefix}_weight"]
            if f"{prefix}_bias" in self._parameters:
                half._parameters["bias"] = self._parameters[f"{prefix}_bias"]
        fc1._parameters["layer_norm_weight"] = self._parameters["layer_norm_weight"]
        if "layer_norm_bias" in self._parameters:
            fc1._parameters["layer_norm_bias"] = self._parameters["layer_norm_bias"]
        hidden = activations.Activation.apply(fc1(inp, is_first_microbatch), self.gated)
        return fc2(hidden, is_first_microbatch)

    def get_extra_state(self) -> Any:
        """Nothing without fp8."""
        return torch.empty(0, dtype=torch.uint8)

    def set_extra_state(self, state: Any) -> None:
        """What get_extra_state returned."""


__getattr__ = missing_names(__name__)
