"""One Llama block, forward and backward, eager or compiled: an ordinary script, run under `phantom run`.

Arguments: hidden, heads, key-value heads, feed-forward width, batch, sequence, `eager` or `compiled`.
Prints a JSON line with milliseconds of device time per step.
"""

from __future__ import annotations

import json
import sys

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class RmsNorm(nn.Module):
    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(hidden))

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)
        return self.weight * wide.to(x.dtype)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


class Block(nn.Module):
    def __init__(self, hidden: int, heads: int, kv_heads: int, width: int) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.size = heads, kv_heads, hidden // heads
        self.q = nn.Linear(hidden, hidden, bias=False)
        self.k = nn.Linear(hidden, kv_heads * self.size, bias=False)
        self.v = nn.Linear(hidden, kv_heads * self.size, bias=False)
        self.o = nn.Linear(hidden, hidden, bias=False)
        self.gate = nn.Linear(hidden, width, bias=False)
        self.up = nn.Linear(hidden, width, bias=False)
        self.down = nn.Linear(width, hidden, bias=False)
        self.attention_norm, self.mlp_norm = RmsNorm(hidden), RmsNorm(hidden)

    def attention(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        batch, length, hidden = x.shape
        q = self.q(x).view(batch, length, self.heads, self.size).transpose(1, 2)
        k = self.k(x).view(batch, length, self.kv_heads, self.size).transpose(1, 2)
        v = self.v(x).view(batch, length, self.kv_heads, self.size).transpose(1, 2)
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        grouped = self.heads != self.kv_heads
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=grouped)
        return self.o(out.transpose(1, 2).reshape(batch, length, hidden))

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x), cos, sin)
        y = self.mlp_norm(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


def main() -> None:
    hidden, heads, kv_heads, width, batch, length = map(int, sys.argv[1:7])
    block: nn.Module = Block(hidden, heads, kv_heads, width).cuda().bfloat16()
    if sys.argv[7] == "compiled":
        block = torch.compile(block)
    x = torch.randn(batch, length, hidden, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    cos = torch.randn(length, hidden // heads, device="cuda", dtype=torch.bfloat16)
    sin = torch.randn_like(cos)
    gradient = torch.randn_like(x)
    times_ms = []
    for _ in range(4):
        torch.cuda.synchronize()
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        block(x, cos, sin).backward(gradient)
        end.record()
        torch.cuda.synchronize()
        times_ms.append(start.elapsed_time(end))
        block.zero_grad()
        x.grad = None
    print(json.dumps({"step_ms": sorted(times_ms[1:])[1], "peak_bytes": torch.cuda.max_memory_allocated()}))


main()
