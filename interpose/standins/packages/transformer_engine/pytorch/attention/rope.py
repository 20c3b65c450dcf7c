"""Rotary position embedding as one kernel each way."""

from __future__ import annotations

from typing import Any

import torch

from interpose.standins import operators
from interpose.standins.surface import missing_names, not_covered


class RotaryPositionEmbedding(torch.nn.Module):
    """Frequencies of the positions: [length, 1, 1, dim]."""

    def __init__(
        self, dim: int, rotary_percent: float = 1.0, seq_len_interpolation_factor: int | None = None,
        pretrained_max_position_embeddings: int | None = None, rotary_base: float = 10000.0,
        interleaved: bool = False,
    ) -> None:  # fmt: skip
        super().__init__()
        dim = int(dim * rotary_percent)
        positions = torch.arange(0, dim, 2, dtype=torch.float32, device=torch.cuda.current_device())
        self.inv_freq: Any
        self.register_buffer("inv_freq", 1.0 / (rotary_base ** (positions / dim)))
        self.interleaved = interleaved

    def forward(self, max_seq_len: int, offset: int = 0) -> Any:
        """The frequencies of `max_seq_len` positions."""
        positions = torch.arange(max_seq_len, device=self.inv_freq.device, dtype=torch.float32) + offset
        freqs = torch.outer(positions, self.inv_freq)
        return torch.cat((freqs, freqs), dim=-1)[:, None, None, :]


class _Rope(torch.autograd.Function):
    """Saves the frequencies only."""

    @staticmethod
    def forward(ctx: Any, t: Any, freqs: Any) -> Any:
        ctx.save_for_backward(freqs)
        return _rotate(t, freqs)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        (freqs,) = ctx.saved_tensors
        return _rotate(grad, freqs), None


def _rotate(t: Any, freqs: Any) -> Any:
    out = torch.empty(t.shape, dtype=t.dtype, device=t.device)
    operators.fused_rope_kernel([t, freqs], [out])
    return out


def apply_rotary_pos_emb(
    t: Any, freqs: Any, tensor_format: str = "sbhd", start_positions: Any = None, interleaved: bool = False,
    fused: bool = False, cu_seqlens: Any = None, cp_size: int = 1, cp_rank: int = 0,
) -> Any:  # fmt: skip
    """Rotates queries or keys; unfused it is what the library composes of PyTorch's operators."""
    if fused:
        return _Rope.apply(t, freqs)
    if start_positions is not None or tensor_format == "thd":
        raise not_covered(__name__, "apply_rotary_pos_emb", why="(unfused, with start positions or packed)")
    if tensor_format == "bshd":
        freqs = freqs.transpose(0, 1)
    cos, sin = torch.cos(freqs).to(t.dtype), torch.sin(freqs).to(t.dtype)
    width = freqs.shape[-1]
    turned, rest = t[..., :width], t[..., width:]
    first, second = turned.chunk(2, dim=-1)
    turned = turned * cos + torch.cat((-second, first), dim=-1) * sin
    return torch.cat((turned, rest), dim=-1)


class _QkvRope(torch.autograd.Function):
    """Splits and rotates in one kernel; saves the frequencies."""

    @staticmethod
    def forward(ctx: Any, qkv: Any, q_freqs: Any, k_freqs: Any, sizes: Any, width: int) -> Any:
        ctx.save_for_backward(q_freqs, k_freqs)
        ctx.shape = qkv.shape
        lead = qkv.shape[:2]
        outs = tuple(
            torch.empty((*lead, qkv.shape[2] * (size // width), width), dtype=qkv.dtype, device=qkv.device)
            for size in sizes
        )
        operators.fused_rope_kernel([qkv, q_freqs, k_freqs], list(outs))
        return outs

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        q_freqs, k_freqs = ctx.saved_tensors
        out = torch.empty(ctx.shape, dtype=grads[0].dtype, device=grads[0].device)
        operators.fused_rope_kernel([*grads, q_freqs, k_freqs], [out])
        return out, None, None, None, None


def apply_fused_qkv_rotary_pos_emb(
    qkv: Any, q_freqs: Any, k_freqs: Any, qkv_split_arg_list: Any, tensor_format: str = "sbhd",
    start_positions: Any = None, interleaved: bool = False, cu_seqlens: Any = None, cp_size: int = 1,
    cp_rank: int = 0,
) -> Any:  # fmt: skip
    """Query, key and value of a mixed [s, b, groups, q + k + v] tensor, the first two rotated."""
    return _QkvRope.apply(qkv, q_freqs, k_freqs, tuple(qkv_split_arg_list), qkv_split_arg_list[1])


__getattr__ = missing_names(__name__)
