"""Three styles of GPT: `mpt` (llm-foundry), `llama`, and `megatron` (that of 2022, tensor-parallel)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from checkpointing import run_blocks
from tensor_parallel import (
    ColumnLinear,
    Group,
    RowLinear,
    VocabularyEmbedding,
    copy_to_group,
    group_size,
    vocabulary_cross_entropy,
)
from torch import Tensor, nn

STYLES = ("mpt", "llama", "megatron")


@dataclass(frozen=True)
class Shape:
    """Dimensions of the model; *group* is the tensor-parallel group."""

    style: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    ffn: int
    vocabulary: int
    length: int
    flash: bool
    dropout: float
    recompute: str
    group: Group
    eager_norm: bool = False
    half_loss: bool = False
    causal: bool = True

    @property
    def biased(self) -> bool:
        return self.style == "megatron"


class Norm(nn.Module):
    """LayerNorm, or RMSNorm for the llama style."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(shape.hidden))
        self.bias = nn.Parameter(torch.empty(shape.hidden)) if shape.biased else None
        self.rms, self.eager = shape.style == "llama", shape.eager_norm

    def forward(self, x: Tensor) -> Tensor:
        if self.rms and self.eager:
            wide = x.float()
            wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)
            return wide.type_as(x) * self.weight
        if self.rms:
            return F.rms_norm(x, self.weight.shape, self.weight, 1e-5)
        return F.layer_norm(x, self.weight.shape, self.weight, self.bias)


def rotate(x: Tensor, angles: Tensor) -> Tensor:
    """Rotary embedding of x (batch, length, heads, head size) in complex numbers, as Llama's code has it."""
    pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * angles[None, : x.shape[1], None]).flatten(3).type_as(x)


class Attention(nn.Module):
    """Causal self-attention of x (batch, length, hidden), in the megatron style (length, batch, hidden)."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        parts = group_size(shape.group)
        self.heads, self.kv_heads = shape.heads // parts, max(1, shape.kv_heads // parts)
        self.size = shape.hidden // shape.heads
        wide, narrow = shape.hidden, shape.kv_heads * self.size
        if shape.style == "llama":
            self.q = ColumnLinear(wide, wide, group=shape.group, bias=False)
            self.k = ColumnLinear(wide, narrow, group=shape.group, bias=False)
            self.v = ColumnLinear(wide, narrow, group=shape.group, bias=False)
        else:
            self.qkv = ColumnLinear(wide, wide + 2 * narrow, group=shape.group, bias=shape.biased)
        self.out = RowLinear(wide, wide, group=shape.group, bias=shape.biased)

    def forward(self, x: Tensor, extra: Tensor | None) -> Tensor:
        if self.shape.style == "megatron":
            return self.out(self._by_length(self.qkv(x)))
        batch, length, _ = x.shape
        if self.shape.style == "llama":
            q = self.q(x).view(batch, length, self.heads, self.size)
            k = self.k(x).view(batch, length, self.kv_heads, self.size)
            v = self.v(x).view(batch, length, self.kv_heads, self.size)
            assert extra is not None
            q, k = rotate(q, extra), rotate(k, extra)
        else:
            parts = self.qkv(x).split([self.heads * self.size] + 2 * [self.kv_heads * self.size], dim=-1)
            q, k, v = (part.view(batch, length, -1, self.size) for part in parts)
        q, k, v = (part.transpose(1, 2) for part in (q, k, v))
        grouped = self.kv_heads != self.heads
        y = F.scaled_dot_product_attention(q, k, v, is_causal=self.shape.causal, enable_gqa=grouped)
        return self.out(y.transpose(1, 2).reshape(batch, length, -1))

    def _by_length(self, mixed: Tensor) -> Tensor:
        """Attention of Megatron-LM without flash kernels: products, softmax, dropout."""
        length, batch, _ = mixed.shape
        q, k, v = mixed.view(length, batch, self.heads, 3 * self.size).chunk(3, dim=-1)
        if self.shape.flash:
            q, k, v = (part.permute(1, 2, 0, 3) for part in (q, k, v))
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=self.shape.dropout)
            return y.permute(2, 0, 1, 3).reshape(length, batch, -1)
        q, k, v = (part.reshape(length, batch * self.heads, self.size).transpose(0, 1) for part in (q, k, v))
        buffer = q.new_empty(batch * self.heads, length, length)
        scores = torch.baddbmm(buffer, q, k.transpose(1, 2), beta=0.0, alpha=1.0 / math.sqrt(self.size))
        scores = scores.view(batch, self.heads, length, length)
        # Megatron masks within its fused kernel; a mask of its own would be another pass over the scores.
        scores = torch.softmax(scores, dim=-1)
        scores = F.dropout(scores, self.shape.dropout).view(batch * self.heads, length, length)
        y = torch.bmm(scores, v).view(batch, self.heads, length, self.size)
        return y.permute(2, 0, 1, 3).reshape(length, batch, -1)


class FeedForward(nn.Module):
    """GELU with two products, or SwiGLU with three."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.gated = shape.style == "llama"
        options = {"group": shape.group, "bias": shape.biased}
        self.up = ColumnLinear(shape.hidden, shape.ffn, **options)
        self.gate = ColumnLinear(shape.hidden, shape.ffn, **options) if self.gated else None
        self.down = RowLinear(shape.ffn, shape.hidden, **options)
        self.approximate = "tanh" if shape.style == "megatron" else "none"

    def forward(self, x: Tensor) -> Tensor:
        if self.gate is not None:
            return self.down(F.silu(self.gate(x)) * self.up(x))
        return self.down(F.gelu(self.up(x), approximate=self.approximate))


class Block(nn.Module):
    """A pre-norm transformer block."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.norm1, self.norm2 = Norm(shape), Norm(shape)
        self.attention, self.feed_forward = Attention(shape), FeedForward(shape)
        self.dropout = shape.dropout

    def forward(self, x: Tensor, extra: Tensor | None = None) -> Tensor:
        x = x + F.dropout(self.attention(self.norm1(x), extra), self.dropout, self.dropout > 0)
        return x + F.dropout(self.feed_forward(self.norm2(x)), self.dropout, self.dropout > 0)


class Stage(nn.Module):
    """Blocks *first* to *last* of a GPT, with the embedding before the first and the loss after the last.

    Takes token ids (batch, length + 1) on the first stage, activations on the others; returns the loss on
    the last stage, activations on the others.
    """

    def __init__(self, shape: Shape, *, first: int, last: int) -> None:
        super().__init__()
        self.shape = shape
        self.starts, self.ends = first == 0, last == shape.layers
        learned = shape.style != "llama"
        if self.starts or (self.ends and learned):
            self.words = VocabularyEmbedding(shape.vocabulary, shape.hidden, group=shape.group)
        self.positions = (
            nn.Parameter(torch.empty(shape.length, shape.hidden)) if self.starts and learned else None
        )
        self.blocks = nn.ModuleList(Block(shape) for _ in range(first, last))
        if self.ends:
            self.norm = Norm(shape)
            if not learned:
                self.head = ColumnLinear(shape.hidden, shape.vocabulary, group=shape.group, bias=False)

    def extra(self, device: torch.device) -> Tensor | None:
        """Return what every block gets: rotary angles in the llama style."""
        if self.shape.style == "llama":
            half = self.shape.hidden // self.shape.heads // 2
            angle = torch.outer(
                torch.arange(self.shape.length, device=device), torch.ones(half, device=device)
            )
            return torch.polar(torch.ones_like(angle), angle)
        return None

    def forward(self, x: Tensor, ids: Tensor, extra: Tensor | None) -> Tensor:
        by_length = self.shape.style == "megatron"
        if self.starts:
            x = self.words(ids[:, :-1])
            if self.positions is not None:
                x = x + self.positions
            x = F.dropout(x, self.shape.dropout, self.shape.dropout > 0)
            x = x.transpose(0, 1).contiguous() if by_length else x
        x = run_blocks(self.blocks, x, extra, recompute=self.shape.recompute)
        return self.loss(self.norm(x), ids[:, 1:]) if self.ends else x

    def loss(self, x: Tensor, target: Tensor) -> Tensor:
        """Return the mean cross-entropy of x against *target* (batch, length)."""
        if self.shape.style == "llama":
            logits = self.head(x).flatten(0, 1)
            return F.cross_entropy(logits if self.shape.half_loss else logits.float(), target.flatten())
        logits = F.linear(copy_to_group(x, self.shape.group), self.words.weight)
        if self.shape.style == "mpt":
            # llm-foundry's fused loss reads the logits in bf16 and makes no fp32 copy of them.
            return F.cross_entropy(logits.flatten(0, 1), target.flatten())
        flat = logits.flatten(0, 1).float()
        return vocabulary_cross_entropy(flat, target.transpose(0, 1).flatten(), self.shape.group).mean()
