"""Blocks of keys that attention visits: causal, windows, packed sequences, few heads, MLA's heads."""

from __future__ import annotations

from dataclasses import replace

import pytest

from phantom.kernels.gpu import gpu_by_name
from phantom.kernels.key import cost_key
from phantom.kernels.predict.constants import constants_for
from phantom.kernels.predict.fused_attention import AttentionShape, attention_s, attention_shape
from phantom.kernels.predict.fused_attention.key_blocks import KeyVisits, key_visits
from phantom.kernels.request.description import KernelDescription, TensorMeta, contiguous


def _visits(q_len: int, kv_len: int, **mask: object) -> KeyVisits:
    return key_visits(q_len, kv_len, tile_q=128, block_k=64, **{"causal": False, **mask})  # type: ignore[arg-type]


def test_blocks_that_a_mask_leaves_empty_are_skipped() -> None:
    assert _visits(512, 512) == KeyVisits(4, 4 * 512, 512)
    assert _visits(512, 512, causal=True) == KeyVisits(4, 128 + 256 + 384 + 512, 512)
    # Queries are beside the last keys: one query of a prompt's continuation sees all of them.
    assert _visits(1, 512, causal=True) == KeyVisits(1, 512, 512)
    # A window of 64 keys before the query's own: the tile's first query reaches one block further back.
    assert _visits(512, 512, causal=True, window=(64, 0)).keys == 128 + 3 * 192
    assert _visits(512, 512, window=(64, 64)).keys == 192 + 2 * 256 + 192


def _shape(**changes: object) -> AttentionShape:
    shape = AttentionShape(1, 16, 16, 8192, 8192, 128, 128, True, False, "bfloat16", False)
    return replace(shape, **changes)  # type: ignore[arg-type]


def _seconds(shape: AttentionShape, gpu_name: str = "h100", implementation: str = "flash") -> float:
    gpu = gpu_by_name(gpu_name)
    group = f"attention.{implementation}{'.backward' if shape.backward else ''}"
    return attention_s(
        shape,
        peak_flops_per_s=gpu.fp16_flops_per_s,
        gpu=gpu,
        constants=constants_for(gpu.architecture).group(group),
    )


@pytest.mark.parametrize("backward", [False, True])
def test_a_window_costs_its_share(backward: bool) -> None:
    whole = _seconds(_shape(backward=backward))
    windowed = _seconds(_shape(backward=backward, window=(255, 0)))
    assert 0.05 < windowed / whole < 0.2  # 256 of 4,096 keys on average, and the blocks that the mask cuts


@pytest.mark.parametrize("backward", [False, True])
def test_packed_sequences_cost_the_sum_of_their_squares(backward: bool) -> None:
    one = _seconds(_shape(backward=backward))
    mixed = ((128, 128),) * 8 + ((7168, 7168),)
    packed = _shape(backward=backward, batch=9, q_len=911, kv_len=911, sequences=mixed)
    assert _seconds(packed) / one == pytest.approx(0.768, rel=0.12)
    equal = _shape(backward=backward, batch=8, q_len=1024, kv_len=1024, sequences=((1024, 1024),) * 8)
    assert _seconds(equal) == _seconds(replace(equal, sequences=None))
    assert equal.flops == pytest.approx(_shape(backward=backward).flops / 8)


def _varlen(values: list[int] | None) -> KernelDescription:
    q = contiguous("bfloat16", 8192, 16, 128)
    offsets = TensorMeta("int32", (10,), (1,))
    extra = () if values is None else (("offsets", ((3, tuple(values)), (4, tuple(values)))),)
    args = (q, q, q, offsets, offsets, 7168, 7168, 0.0, True, False, None)
    return KernelDescription("aten::_flash_attention_forward", args, (q,), extra)


def test_lengths_come_from_the_offsets_values_where_they_are_known() -> None:
    ends = [0, 7168, *range(7296, 8193, 128)]
    found = attention_shape(_varlen(ends))
    assert found is not None
    assert found[1].sequences == ((128, 128),) * 8 + ((7168, 7168),)
    unknown = attention_shape(_varlen(None))
    assert unknown is not None
    assert unknown[1].sequences is None
    assert len({cost_key(_varlen(v)) for v in (None, ends, [0, 1024, *range(1920, 8193, 896)])}) == 3


def test_windows_of_every_operator_are_read() -> None:
    q = contiguous("bfloat16", 1, 4096, 16, 64)
    grad = (q, q, q, q, q, contiguous("float32", 1, 16, 4096), None, None, 4096, 4096, 0.0, True)
    seed = contiguous("int64")
    kernels = {
        "aten::_flash_attention_forward": (q, q, q, None, None, 4096, 4096, 0.0, True, False, None, 255, 0),
        "aten::_flash_attention_backward": (*grad, seed, seed, None, 255, 0),
    }
    for op, args in kernels.items():
        found = attention_shape(KernelDescription(op, args, (q,)))
        assert found is not None
        assert found[1].window == (255, 0)
    efficient = (q, q, q, None, None, None, None, None, 0.0, 1, True, None, None, 256)
    found = attention_shape(KernelDescription("aten::_efficient_attention_forward", efficient, (q,)))
    assert found is not None
    assert found[1].window == (255, None)


def test_few_heads_leave_multiprocessors_idle() -> None:
    shapes = {heads: _shape(heads=heads, kv_heads=heads, q_len=4096, kv_len=4096) for heads in (4, 64)}
    per_head = {heads: _seconds(shape, "b200", "cudnn") / heads for heads, shape in shapes.items()}
    assert per_head[4] > 1.5 * per_head[64]


def test_one_query_shares_its_keys_out_over_the_multiprocessors() -> None:
    decode = _shape(batch=1, heads=8, kv_heads=8, q_len=1, kv_len=65536, causal=False)
    moved_bytes = 2 * 8 * 65536 * 128 * 2
    assert _seconds(decode, "a100") < 3 * moved_bytes / 2.0e12 + 20e-6


def test_mla_takes_the_mean_of_its_head_sizes() -> None:
    """te009 of published_te_attention.csv: 64 heads of 192 and 128 on B200, 345 us with the call's gaps."""
    mla = _shape(heads=64, kv_heads=64, q_len=4096, kv_len=4096, head_dim=192, v_head_dim=128)
    assert 250e-6 < _seconds(mla, "b200", "cudnn") < 345e-6
