"""flash-attn, xFormers and bitsandbytes: the surface that scripts use, kernels, saved tensors, states."""

from __future__ import annotations

from pathlib import Path

from standins.running import run_script

FLASH = """
import importlib.metadata, torch, flash_attn
from flash_attn import (flash_attn_func, flash_attn_kvpacked_func, flash_attn_qkvpacked_func,
                        flash_attn_varlen_func)
from flash_attn.bert_padding import pad_input, unpad_input
assert flash_attn.__version__ == importlib.metadata.version("flash-attn")
B, S, H, D = 2, 1024, 8, 64
new = dict(device="cuda", dtype=torch.bfloat16, requires_grad=True)
q, k, v = torch.randn(B, S, H, D, **new), torch.randn(B, S, 2, D, **new), torch.randn(B, S, 2, D, **new)
before = torch.cuda.memory_allocated()
out = flash_attn_func(q, k, v, causal=True)
kept = torch.cuda.memory_allocated() - before
out.backward(torch.empty_like(out))
print("kept", kept - 2 * B * S * H * D - 4 * B * S * H < 4096, k.grad.shape == k.shape)
half = flash_attn_func(q, k, v, causal=True, window_size=(128, 0), dropout_p=0.1)
qkv = torch.randn(B, S, 3, H, D, **new)
peak = torch.cuda.memory_allocated()
flash_attn_qkvpacked_func(qkv, causal=True).sum().backward()
kv = torch.randn(B, S, 2, H, D, **new)
flash_attn_kvpacked_func(q, kv).sum().backward()
print("packed", qkv.grad.shape == qkv.shape, kv.grad.shape == kv.shape)
offsets = torch.tensor([0, 500, 1500, 2048], dtype=torch.int32, device="cuda")
tokens = torch.randn(2048, H, D, **new)
flash_attn_varlen_func(tokens, tokens, tokens, offsets, offsets, 1000, 1000, causal=True).sum().backward()
print("packed sequences", tokens.grad.shape == tokens.shape)
mask = torch.ones(2, 16, dtype=torch.int64, device="cuda")
mask[1, 8:] = 0
data = torch.randn(2, 16, 4, device="cuda", requires_grad=True)
packed, indices, starts, longest, used = unpad_input(data, mask)
print("unpadded", packed.shape[0], starts.tolist(), longest)
pad_input(packed, indices, 2, 16).sum().backward()
try:
    flash_attn_func(q.float(), k.float(), v.float())
except RuntimeError as error:
    print("refused:", error)
"""


def test_flash_attn_keeps_the_output_and_the_log_sums_only(tmp_path: Path) -> None:
    log, summary = run_script(tmp_path, FLASH)
    assert "kept True True" in log
    assert "packed True True" in log
    assert "packed sequences True" in log
    assert "unpadded 24 [0, 16, 24] 16" in log
    assert "refused: FlashAttention only support fp16 and bf16 data type" in log
    assert summary["unpriced_ops"] == []
    (used,) = summary["stand_ins"]
    assert used["library"] == "flash_attn"
    kernels = {row["name"]: row["count"] for row in summary["top_kernels"]}
    assert kernels["aten::_flash_attention_forward"] == 5
    assert kernels["aten::_flash_attention_backward"] >= 4


XFORMERS = """
import torch
import xformers.ops as xops
from xformers.ops.fmha import BlockDiagonalMask
new = dict(device="cuda", dtype=torch.bfloat16, requires_grad=True)
q = torch.randn(2, 512, 8, 64, **new)
xops.memory_efficient_attention(q, q, q, attn_bias=xops.LowerTriangularMask()).sum().backward()
tokens = torch.randn(1, 2048, 8, 64, **new)
mask = BlockDiagonalMask.from_seqlens([500, 1000, 548]).make_causal()
out = xops.memory_efficient_attention(tokens, tokens, tokens, attn_bias=mask)
out.sum().backward()
print([part.shape[1] for part in mask.split(out)])
exact = torch.randn(2, 256, 8, 64, device="cuda", requires_grad=True)
bias = torch.zeros(2, 8, 256, 256, device="cuda")
xops.memory_efficient_attention(exact, exact, exact, attn_bias=bias).sum().backward()
"""


def test_xformers_takes_flash_attention_where_it_can_and_cutlass_elsewhere(tmp_path: Path) -> None:
    log, summary = run_script(tmp_path, XFORMERS)
    assert "[500, 1000, 548]" in log
    kernels = {row["name"]: row["count"] for row in summary["top_kernels"]}
    assert kernels["aten::_flash_attention_forward"] == 2
    assert kernels["aten::_efficient_attention_forward"] == 1
    assert summary["unpriced_ops"] == []


BITSANDBYTES = """
import bitsandbytes as bnb, torch
N = 1 << 20
for kind in (bnb.optim.AdamW8bit, bnb.optim.AdamW, bnb.optim.Lion8bit):
    weight = torch.nn.Parameter(torch.zeros(N, device="cuda"))
    weight.grad = torch.zeros_like(weight)
    small = torch.nn.Parameter(torch.zeros(1024, device="cuda"))
    small.grad = torch.zeros_like(small)
    optimizer = kind([weight, small], lr=1e-3)
    before = torch.cuda.memory_allocated()
    optimizer.step()
    print(kind.__name__, torch.cuda.memory_allocated() - before)
try:
    bnb.nn.Linear4bit(4, 4)
except NotImplementedError as error:
    print(error)
"""


def test_8_bit_states_take_a_byte_each_and_a_scale_per_block(tmp_path: Path) -> None:
    log, summary = run_script(tmp_path, BITSANDBYTES)
    n, block_scales, small = 1 << 20, 4 * (1 << 20) // 256, 2 * 4 * 1024
    assert f"AdamW8bit {2 * (n + block_scales) + 2048 + small}" in log
    assert f"AdamW {2 * 4 * n + small}" in log
    assert f"Lion8bit {n + block_scales + 1024 + small // 2}" in log
    assert "bitsandbytes.nn.Linear4bit" in log
    assert summary["unpriced_ops"] == []
