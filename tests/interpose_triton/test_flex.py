"""FlexAttention, and Liger's hand-written kernels."""

from __future__ import annotations

import pytest
import torch
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from .attached import attach, device_ms

EXTENSION, LAUNCHES = attach()


def causal(b: torch.Tensor, h: torch.Tensor, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    return q >= k


def heads(length: int) -> list[torch.Tensor]:
    return [
        torch.randn(1, 8, length, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)
        for _ in range(3)
    ]


def flops_of(part: str) -> float:
    found = [r for op, r in LAUNCHES.requests.items() if part in op and r["sm"].get("dot_flops")]
    return sum(flops for request in found for _, flops in request["sm"]["dot_flops"])


def test_flex_attention_forward_and_backward() -> None:
    length = 1024
    q, k, v = heads(length)
    attend = torch.compile(flex_attention)
    whole = attend(q, k, v)
    assert flops_of("flex_attention") == pytest.approx(4 * 8 * length * length * 64, rel=0.05)
    whole.sum().backward()
    # Seven products: dQ is made in a pass of its own, which repeats two of them.
    assert flops_of("flex_attention_backward") == pytest.approx(14 * 8 * length * length * 64, rel=0.05)
    mask = create_block_mask(causal, None, None, length, length, device="cuda")
    half = attend(q, k, v, block_mask=mask)
    half.sum().backward()
    # 8 x 8 blocks of 128: 36 of 64 are not empty.
    assert not any(r["sm"].get("unknown_loops") for r in LAUNCHES.requests.values() if "sm" in r)
    assert device_ms(lambda: attend(q, k, v, block_mask=mask)) < device_ms(lambda: attend(q, k, v))


def test_a_compiled_block_mask_is_taken_as_half_full() -> None:
    length = 2048
    q, k, v = heads(length)
    mask = torch.compile(create_block_mask)(causal, None, None, length, length, device="cuda")
    assert not EXTENSION.has_value(mask.kv_num_blocks)
    torch.compile(flex_attention)(q, k, v, block_mask=mask)
    assert not any(r["sm"].get("unknown_loops") for r in LAUNCHES.requests.values() if "sm" in r)


def test_liger_kernels_are_priced() -> None:
    liger = pytest.importorskip("liger_kernel.transformers")
    norm = liger.LigerRMSNorm(256).cuda()
    x = torch.randn(64, 256, device="cuda", requires_grad=True)
    norm(x).sum().backward()
    loss = liger.LigerCrossEntropyLoss()(
        torch.randn(64, 1000, device="cuda", requires_grad=True),
        torch.zeros(64, device="cuda", dtype=torch.long),
    )
    loss.backward()
    names = {op for op in LAUNCHES.requests if op.startswith("triton::")}
    assert any("rms_norm_forward" in name for name in names), names
    assert any("rms_norm_backward" in name for name in names), names
    assert any("cross_entropy" in name for name in names), names
    assert not any(
        r["sm"].get("problem") for r in LAUNCHES.requests.values() if "sm" in r and "grid" in r["sm"]
    )
