"""A whole transformer layer."""

from __future__ import annotations

from typing import Any

import torch

from interpose.standins.surface import missing_names, not_covered

from .attention import MultiheadAttention
from .module import LayerNormMLP


class TransformerLayer(torch.nn.Module):
    """Encoder layer: attention and feed-forward block, each with its norm, dropout and residual."""

    def __init__(
        self, hidden_size: int, ffn_hidden_size: int, num_attention_heads: int,
        num_gqa_groups: int | None = None, layernorm_epsilon: float = 1e-5, hidden_dropout: float = 0.1,
        attention_dropout: float = 0.1, init_method: Any = None, output_layer_init_method: Any = None,
        layer_number: int | None = None, kv_channels: int | None = None, self_attn_mask_type: str = "causal",
        window_size: Any = None, tp_group: Any = None, tp_size: int = 1, params_dtype: Any = None,
        get_rng_state_tracker: Any = None, fuse_wgrad_accumulation: bool = False,
        sequence_parallel: bool = False, apply_residual_connection_post_layernorm: bool = False,
        output_layernorm: bool = False, parallel_attention_mlp: bool = False, layer_type: str = "encoder",
        drop_path_rate: float = 0.0, set_parallel_mode: bool = False, fuse_qkv_params: bool = False,
        zero_centered_gamma: bool = False, bias: bool = True, activation: str = "gelu",
        normalization: str = "LayerNorm", device: Any = "cuda", attn_input_format: str = "sbhd", **other: Any,
    ) -> None:  # fmt: skip
        super().__init__()
        refused = {
            "apply_residual_connection_post_layernorm": apply_residual_connection_post_layernorm,
            "output_layernorm": output_layernorm, "parallel_attention_mlp": parallel_attention_mlp,
            "layer_type": layer_type != "encoder", "drop_path_rate": drop_path_rate > 0,
        }  # fmt: skip
        asked = [name for name, value in refused.items() if value]
        if asked:
            raise not_covered("transformer_engine.pytorch", "TransformerLayer", why=f"({', '.join(asked)})")
        common: dict[str, Any] = {
            "tp_group": tp_group, "tp_size": tp_size, "params_dtype": params_dtype,
            "get_rng_state_tracker": get_rng_state_tracker, "bias": bias, "device": device,
            "fuse_wgrad_accumulation": fuse_wgrad_accumulation, "sequence_parallel": sequence_parallel,
            "set_parallel_mode": set_parallel_mode, "zero_centered_gamma": zero_centered_gamma,
            "normalization": normalization, "return_bias": False, "init_method": init_method,
            "output_layer_init_method": output_layer_init_method,
        }  # fmt: skip
        self.self_attention = MultiheadAttention(
            hidden_size, num_attention_heads, kv_channels, attention_dropout, layernorm_epsilon,
            layer_number=layer_number, attn_mask_type=self_attn_mask_type, window_size=window_size,
            num_gqa_groups=num_gqa_groups, input_layernorm=True, qkv_format=attn_input_format, **common,
        )  # fmt: skip
        self.layernorm_mlp = LayerNormMLP(
            hidden_size, ffn_hidden_size, layernorm_epsilon, activation=activation, **common
        )
        self.hidden_dropout = hidden_dropout

    def _add(self, data: Any, residual: Any) -> Any:
        if self.training and self.hidden_dropout:
            data = torch.nn.functional.dropout(data, self.hidden_dropout)
        return residual + data

    def forward(
        self, hidden_states: Any, attention_mask: Any = None, self_attn_mask_type: str | None = None,
        is_first_microbatch: Any = None, rotary_pos_emb: Any = None, **kwargs: Any,
    ) -> Any:  # fmt: skip
        """The layer's output."""
        attended = self.self_attention(
            hidden_states, attention_mask, attn_mask_type=self_attn_mask_type,
            is_first_microbatch=is_first_microbatch, rotary_pos_emb=rotary_pos_emb, **kwargs,
        )  # fmt: skip
        hidden_states = self._add(attended, hidden_states)
        return self._add(self.layernorm_mlp(hidden_states, is_first_microbatch), hidden_states)


__getattr__ = missing_names(__name__)
