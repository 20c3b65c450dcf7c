"""Attention with its projections."""

from __future__ import annotations

from typing import Any

import torch

from interpose.standins.surface import missing_names, not_covered

from ..module import LayerNormLinear, Linear
from .dot_product_attention import DotProductAttention
from .rope import apply_rotary_pos_emb


class MultiheadAttention(torch.nn.Module):
    """Self-attention: (norm and) query-key-value projection, attention, output projection."""

    def __init__(
        self, hidden_size: int, num_attention_heads: int, kv_channels: int | None = None,
        attention_dropout: float = 0.1, layernorm_epsilon: float = 1e-5, init_method: Any = None,
        output_layer_init_method: Any = None, layer_number: int | None = None,
        attn_mask_type: str = "causal", window_size: Any = None, tp_group: Any = None, tp_size: int = 1,
        num_gqa_groups: int | None = None, fuse_wgrad_accumulation: bool = False,
        get_rng_state_tracker: Any = None, sequence_parallel: bool = False, params_dtype: Any = None,
        return_bias: bool = False, return_layernorm_output: bool = False, input_layernorm: bool = False,
        attention_type: str = "self", set_parallel_mode: bool = False, fuse_qkv_params: bool = False,
        zero_centered_gamma: bool = False, qkv_weight_interleaved: bool = True, bias: bool = True,
        normalization: str = "LayerNorm", device: Any = "cuda", qkv_format: str = "sbhd", **other: Any,
    ) -> None:  # fmt: skip
        super().__init__()
        if attention_type != "self" or return_layernorm_output:
            raise not_covered("transformer_engine.pytorch", "MultiheadAttention",
                              why="(cross attention, return_layernorm_output)")  # fmt: skip
        self.qkv_format = qkv_format
        self.head_size = kv_channels or hidden_size // num_attention_heads
        self.groups = num_gqa_groups or num_attention_heads
        self.heads = num_attention_heads
        common: dict[str, Any] = {
            "sequence_parallel": sequence_parallel, "fuse_wgrad_accumulation": fuse_wgrad_accumulation,
            "tp_group": tp_group, "tp_size": tp_size, "get_rng_state_tracker": get_rng_state_tracker,
            "params_dtype": params_dtype, "bias": bias, "device": device,
        }  # fmt: skip
        width = (num_attention_heads + 2 * self.groups) * self.head_size
        mode = "column" if set_parallel_mode else None
        if input_layernorm:
            self.layernorm_qkv: Any = LayerNormLinear(
                hidden_size, width, eps=layernorm_epsilon, init_method=init_method, parallel_mode=mode,
                normalization=normalization, zero_centered_gamma=zero_centered_gamma, **common,
            )  # fmt: skip
        else:
            self.qkv: Any = Linear(hidden_size, width, init_method=init_method, parallel_mode=mode, **common)
        self.core_attention = DotProductAttention(
            num_attention_heads, self.head_size, num_gqa_groups=self.groups, window_size=window_size,
            attention_dropout=attention_dropout, qkv_format=qkv_format, attn_mask_type=attn_mask_type,
            tp_size=tp_size, tp_group=tp_group, get_rng_state_tracker=get_rng_state_tracker,
            layer_number=layer_number, sequence_parallel=sequence_parallel,
        )  # fmt: skip
        self.proj = Linear(
            num_attention_heads * self.head_size, hidden_size, return_bias=return_bias,
            init_method=output_layer_init_method, parallel_mode="row" if set_parallel_mode else None,
            **common,
        )  # fmt: skip

    def forward(
        self, hidden_states: Any, attention_mask: Any = None, encoder_output: Any = None,
        attn_mask_type: str | None = None, rotary_pos_emb: Any = None, is_first_microbatch: Any = None,
        **kwargs: Any,
    ) -> Any:  # fmt: skip
        """The output, and the last bias where it is to be returned."""
        projection = self.layernorm_qkv if hasattr(self, "layernorm_qkv") else self.qkv
        mixed = projection(hidden_states, is_first_microbatch)
        tp_size = projection.tp_size if projection.parallel_mode else 1
        heads, groups = self.heads // tp_size, self.groups // tp_size
        mixed = mixed.view(*mixed.shape[:-1], heads + 2 * groups, self.head_size)
        q, k, v = mixed.split([heads, groups, groups], dim=-2)
        if rotary_pos_emb is not None:
            pair = rotary_pos_emb if isinstance(rotary_pos_emb, tuple) else (rotary_pos_emb, rotary_pos_emb)
            q, k = (apply_rotary_pos_emb(t, f, self.qkv_format, fused=True) for t, f in zip((q, k), pair))
        known = {
            name: kwargs[name] for name in ("window_size", "checkpoint_core_attention") if name in kwargs
        }
        out = self.core_attention(q, k, v, attention_mask, attn_mask_type=attn_mask_type, **known)
        return self.proj(out, is_first_microbatch)


__getattr__ = missing_names(__name__)
