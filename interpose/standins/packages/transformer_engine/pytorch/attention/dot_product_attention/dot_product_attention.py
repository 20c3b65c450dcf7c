"""Attention over queries, keys and values, whole or split over a context-parallel group."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch

from interpose.standins import attention, context_parallel
from interpose.standins import tensor_parallel as tp
from interpose.standins.surface import missing_names, not_covered

from ...fp8 import FP8GlobalStateManager


class DotProductAttention(torch.nn.Module):
    """`qkv_format`: sbhd, bshd, or thd (packed sequences with cu_seqlens)."""

    def __init__(
        self, num_attention_heads: int, kv_channels: Any, num_gqa_groups: int | None = None,
        attention_dropout: float = 0.0, qkv_format: str = "sbhd", attn_mask_type: str = "causal",
        window_size: Any = None, sequence_parallel: bool = False, tp_size: int = 1,
        get_rng_state_tracker: Any = None, tp_group: Any = None, layer_number: int | None = None,
        attention_type: str = "self", cp_group: Any = None, cp_global_ranks: Any = None,
        cp_stream: Any = None, cp_comm_type: str = "p2p", softmax_scale: float | None = None,
        softmax_type: str = "vanilla", return_max_logit: bool = False,
    ) -> None:  # fmt: skip
        super().__init__()
        self.num_attention_heads = num_attention_heads
        self.qkv_format, self.attn_mask_type = (
            qkv_format,
            attn_mask_type.replace("causal_padding", "padding_causal"),
        )
        self.window_size = window_size
        self.tp_group = tp_group
        self.tp_size = tp_size if tp_group is None else tp.size_of(tp_group)
        self.get_rng_state_tracker, self.sequence_parallel = get_rng_state_tracker, sequence_parallel
        self.layer_number, self.attention_type = layer_number, attention_type
        self.cp_group, self.cp_global_ranks = cp_group, cp_global_ranks
        self.cp_stream, self.cp_comm_type = cp_stream, cp_comm_type
        self.hidden_size_per_attention_head_k = (
            kv_channels if isinstance(kv_channels, int) else kv_channels[0]
        )
        self.hidden_size_per_attention_head_v = (
            kv_channels if isinstance(kv_channels, int) else kv_channels[1]
        )
        self.num_gqa_groups = num_gqa_groups or num_attention_heads
        self.num_gqa_groups_per_partition = self.num_gqa_groups // self.tp_size
        self.softmax_scale = softmax_scale
        self.attention_dropout = attention_dropout
        self.softmax_type, self.return_max_logit = softmax_type, return_max_logit
        if softmax_type not in ("vanilla", "off-by-one", "learnable"):
            raise not_covered(
                "transformer_engine.pytorch", "DotProductAttention", why=f"(softmax_type {softmax_type})"
            )
        self.softmax_offset = None
        if softmax_type == "learnable":
            heads = num_attention_heads // self.tp_size
            self.softmax_offset = torch.nn.Parameter(torch.empty(heads, device="cuda"))

    def set_tensor_parallel_group(self, tp_group: Any) -> None:
        """The group, if it was not known at construction."""
        self.tp_group = tp_group

    def set_context_parallel_group(
        self, cp_group: Any, cp_global_ranks: Any, cp_stream: Any, cp_comm_type: str = "p2p"
    ) -> None:
        """The group that the sequence is split over."""
        self.cp_group, self.cp_global_ranks = cp_group, cp_global_ranks
        self.cp_stream, self.cp_comm_type = cp_stream, cp_comm_type

    def get_extra_state(self) -> Any:
        """Nothing without fp8 attention."""
        return torch.empty(0, dtype=torch.uint8)

    def set_extra_state(self, state: Any) -> None:
        """What get_extra_state returned."""

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *rest: Any) -> None:
        state_dict.pop(f"{prefix}_extra_state", None)
        super()._load_from_state_dict(state_dict, prefix, *rest)

    def _ranks(self) -> int:
        if self.cp_group is None:
            return 1
        if isinstance(self.cp_group, (list, tuple)):
            return tp.size_of(self.cp_group[0]) * tp.size_of(self.cp_group[1])
        return tp.size_of(self.cp_group)

    def forward(
        self, query_layer: Any, key_layer: Any, value_layer: Any, attention_mask: Any = None,
        qkv_format: str | None = None, cu_seqlens_q: Any = None, cu_seqlens_kv: Any = None,
        cu_seqlens_q_padded: Any = None, cu_seqlens_kv_padded: Any = None, max_seqlen_q: int | None = None,
        max_seqlen_kv: int | None = None, attn_mask_type: str | None = None, window_size: Any = None,
        checkpoint_core_attention: bool = False, core_attention_bias_type: str = "no_bias",
        core_attention_bias: Any = None, alibi_slopes: Any = None, fast_zero_fill: bool = True,
        inference_params: Any = None, pad_between_seqs: Any = None, fp8_output: bool = False,
        num_splits: int | None = 1, **_: Any,
    ) -> Any:  # fmt: skip
        """The output with heads and head size joined."""
        form = qkv_format or self.qkv_format
        mask = attn_mask_type or self.attn_mask_type
        window = window_size if window_size is not None else self.window_size
        if inference_params is not None:
            raise not_covered("transformer_engine.pytorch", "DotProductAttention", why="(inference)")
        if alibi_slopes is not None or core_attention_bias_type == "alibi":
            raise not_covered("transformer_engine.pytorch", "DotProductAttention", why="(ALiBi)")
        if FP8GlobalStateManager.is_fp8_enabled() and FP8GlobalStateManager.get_fp8_recipe().fp8_dpa:
            raise not_covered("transformer_engine.pytorch", "DotProductAttention", why="(fp8 attention)")
        causal = "causal" in mask
        if window is not None and tuple(window) in ((-1, -1), (-1, 0)):
            causal, window = causal or tuple(window) == (-1, 0), None
        bias = core_attention_bias if core_attention_bias_type != "no_bias" else None
        kind = attention.choose(
            bias=bias is not None, window=window is not None, dtype=query_layer.dtype,
            head_dim=max(query_layer.shape[-1], value_layer.shape[-1]),
        )  # fmt: skip
        if mask == "arbitrary":
            kind = "math"
        call = attention.AttentionCall(
            implementation=kind, causal=causal, scale=self.softmax_scale,
            dropout=self.attention_dropout if self.training else 0.0,
            window=None if window is None else (int(window[0]), int(window[1])),
        )  # fmt: skip
        fork: Any = nullcontext()
        if call.dropout and self.get_rng_state_tracker is not None:
            fork = self.get_rng_state_tracker().fork()
        with fork:
            if form == "thd":
                out = self._packed(query_layer, key_layer, value_layer, cu_seqlens_q, cu_seqlens_kv,
                                   max_seqlen_q, max_seqlen_kv, call)  # fmt: skip
            elif form in ("sbhd", "bshd"):
                whole = (query_layer, key_layer, value_layer)
                if checkpoint_core_attention:
                    from torch.utils.checkpoint import checkpoint

                    out = checkpoint(
                        self._dense, *whole, attention_mask, bias, call, form, use_reentrant=False
                    )
                else:
                    out = self._dense(*whole, attention_mask, bias, call, form)
            else:
                raise not_covered("transformer_engine.pytorch", "DotProductAttention", why=f"(format {form})")
        out = out.reshape(*out.shape[:-2], -1)
        if self.return_max_logit:
            return out, torch.empty(query_layer.shape[-2], dtype=out.dtype, device=out.device)
        return out

    def _dense(self, q: Any, k: Any, v: Any, mask: Any, bias: Any, call: Any, form: str) -> Any:
        sequence = 0 if form == "sbhd" else 1
        if self._ranks() > 1:
            if call.implementation == "math" or call.window is not None or bias is not None:
                raise not_covered(
                    "transformer_engine.pytorch", "DotProductAttention",
                    why="(context parallelism with fp32, an arbitrary mask, a window or a bias)",
                )  # fmt: skip
            return context_parallel.attend(
                q, k, v, call=call, kind=self.cp_comm_type or "p2p", group=self.cp_group,
                stream=self.cp_stream, sequence=sequence,
            )  # fmt: skip
        order = (1, 2, 0, 3) if sequence == 0 else (0, 2, 1, 3)
        back = (2, 0, 1, 3) if sequence == 0 else (0, 2, 1, 3)
        query, key, value = (t.permute(*order) for t in (q, k, v))
        if call.implementation == "math":
            return attention.unfused(query, key, value, call, bias, mask).permute(*back).contiguous()
        return attention.FusedAttention.apply(query, key, value, bias, call).permute(*back)

    def _packed(self, q: Any, k: Any, v: Any, offsets_q: Any, offsets_k: Any, max_q: Any, max_k: Any,
                call: Any) -> Any:  # fmt: skip
        if self._ranks() > 1:
            raise not_covered(
                "transformer_engine.pytorch", "DotProductAttention", why="(thd with context parallelism)"
            )
        if call.implementation == "math":
            raise not_covered(
                "transformer_engine.pytorch", "DotProductAttention", why="(thd without a fused kernel)"
            )
        longest_q = int(max_q) if max_q is not None else q.shape[0]
        longest_k = int(max_k) if max_k is not None else k.shape[0]
        return attention.PackedAttention.apply(q, k, v, offsets_q, offsets_k, longest_q, longest_k, call)


__getattr__ = missing_names(__name__)
