"""Values that virtual tensors carry, and what reads of unknown ones give."""

from __future__ import annotations

import warnings
from types import ModuleType

import pytest
import torch

from .attached import configure


def unknown(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """A tensor of which nothing is known."""
    out = torch.empty(shape, device="cuda", dtype=dtype)
    from interpose import extension

    extension.load().drop_value(out)
    return out


def test_integers_from_the_host_come_back(extension: ModuleType) -> None:
    host = torch.arange(100).view(10, 10)
    device = host.cuda()
    host[0, 0] = 77
    assert device[0, 0].item() == 0
    assert device.t()[3, 2].item() == 23
    assert (device * 2 + 1).cpu().equal(torch.arange(100).view(10, 10) * 2 + 1)


def test_small_floats_are_executed_and_large_ones_are_not(extension: ModuleType) -> None:
    assert torch.tensor([1.5, 2.5], device="cuda").sum().item() == 4.0
    assert extension.has_value(torch.ones(200).cuda() * 2)
    large = torch.randn(4096).cuda()
    assert not extension.has_value(large)
    assert not extension.has_value(large + 1)


def test_uniform_fills_of_any_size_keep_the_scalar(extension: ModuleType) -> None:
    big = torch.zeros(1 << 28, device="cuda")
    assert big[12345].item() == 0.0
    big.fill_(3)
    assert (big * 2 + 1)[7].item() == 7.0
    ones = torch.ones(1 << 20, device="cuda", dtype=torch.bfloat16)
    assert ones.float()[5].item() == 1.0
    big.add_(unknown(1 << 28))
    assert not extension.has_value(big)


def test_in_place_write_from_unknown_drops_the_value(extension: ModuleType) -> None:
    a = torch.arange(10, device="cuda")
    view = a[2:4]
    view.copy_(unknown(2, dtype=torch.long))
    assert not extension.has_value(a)


def test_partial_write_of_known_keeps_all(extension: ModuleType) -> None:
    a = torch.zeros(4, dtype=torch.long, device="cuda")
    a[1:3] = torch.tensor([5, 6], device="cuda")
    a[3].fill_(9)
    assert a.tolist() == [0, 5, 6, 9]
    buffer = torch.empty(4, dtype=torch.long, device="cuda")
    for piece, value in zip(buffer.chunk(4), range(4)):
        piece.fill_(value)
    assert buffer.tolist() == [0, 1, 2, 3]


def test_control_flow_on_masks_and_counts_is_right(extension: ModuleType) -> None:
    labels = torch.tensor([1, -100, 3, -100], device="cuda")
    mask = labels != -100
    assert int(mask.sum()) == 2
    assert labels[mask].tolist() == [1, 3]
    assert mask.nonzero().flatten().tolist() == [0, 2]
    assert torch.bincount(labels.clamp(min=0)).shape == (4,)
    values, counts = torch.unique(labels, return_counts=True)
    assert values.tolist() == [-100, 1, 3]
    assert counts.tolist() == [2, 1, 1]


def test_checks_for_nan_and_infinity_pass(extension: ModuleType) -> None:
    loss = unknown(64, 64)
    assert not torch.isnan(loss).any()
    assert not torch.isinf(loss).any()
    assert torch.isfinite(loss).all()
    assert not (loss != loss).any()
    assert torch.equal(loss, unknown(64, 64))
    assert torch.allclose(loss, unknown(64, 64))
    assert not torch.equal(loss, unknown(64, 65))


def test_unknown_bool(extension: ModuleType) -> None:
    mask = unknown(8, 4) > 0.25
    assert not mask.any()
    assert mask.all()
    assert mask.count_nonzero().item() == 32
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert mask.nonzero().shape == (32, 2)
        assert unknown(8, 4)[mask].shape == (32,)


def test_healthy_numbers_depend_on_the_step_only(extension: ModuleType) -> None:
    loss = unknown()
    assert loss.item() == 2.0
    extension.set_healthy_step(3)
    assert loss.item() == 1.25
    assert unknown(5).tolist() == [1.25] * 5
    assert (loss < 1.5).item()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert unknown(dtype=torch.long).item() == 1
    token = unknown(2, dtype=torch.long)
    assert not (token == 1).any()


def test_indices_are_balanced(extension: ModuleType) -> None:
    scores = unknown(6, 4)
    assert scores.argmax(-1).tolist() == [0, 1, 2, 3, 0, 1]
    _, indices = scores.topk(2, dim=-1)
    assert indices.flatten().bincount(minlength=4).tolist() == [3, 3, 3, 3]
    assert all(len(set(row)) == 2 for row in indices.tolist())
    assert torch.multinomial(scores, 1).flatten().tolist() == [0, 1, 2, 3, 0, 1]
    assert scores.sort(dim=-1).indices[0].tolist() == [0, 1, 2, 3]


def test_reads_are_counted_with_their_line(extension: ModuleType) -> None:
    before = dict(extension.unknown_reads())
    unknown().item()
    unknown(3).cpu()
    new = {k: v for k, v in extension.unknown_reads().items() if v != before.get(k)}
    assert len(new) == 2
    assert all("test_values.py:" in where for where in new)


def test_modes_zeros_and_error(extension: ModuleType) -> None:
    configure(unknown_values="zeros")
    assert unknown().item() == 0.0
    configure(unknown_values="error")
    with pytest.raises(RuntimeError, match=r"unknown-values error"):
        unknown().item()
    assert torch.tensor(3, device="cuda").item() == 3


def test_values_off(extension: ModuleType) -> None:
    configure(values=False)
    assert not extension.has_value(torch.arange(10, device="cuda"))


def test_large_copy_to_the_host_is_zero_pages(extension: ModuleType) -> None:
    out = unknown(1 << 20).cpu()
    assert out.shape == (1 << 20,)
    assert not out.any()
    target = torch.ones(1 << 20)
    target.copy_(unknown(1 << 20))
    assert not target.any()


def test_found_inf_keeps_its_value_through_unscale(extension: ModuleType) -> None:
    found = torch.zeros(1, device="cuda")
    torch._amp_foreach_non_finite_check_and_unscale_(
        [unknown(8), unknown(4)], found, torch.ones(1, device="cuda")
    )
    assert found.item() == 0.0
    scaler = torch.amp.GradScaler("cuda", init_scale=1024.0)
    p = torch.nn.Parameter(torch.randn(300, 3).cuda())
    optimizer = torch.optim.AdamW([p], lr=0.1, fused=True)
    scaler.scale((p * 2).sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    assert scaler.get_scale() == 1024.0


def test_embedding_lookup_of_valued_ids_needs_no_guess(extension: ModuleType) -> None:
    before = dict(extension.unknown_reads())
    table = torch.nn.Embedding(10, 64).cuda()
    ids = torch.tensor([1, 2, 3], device="cuda")
    assert table(ids).shape == (3, 64)
    lengths = (ids != 2).long().cumsum(0)
    assert lengths.tolist() == [1, 1, 2]
    assert extension.unknown_reads() == before


def test_wire_payload_round_trip(extension: ModuleType) -> None:
    for value in (
        torch.arange(5),
        torch.tensor([1.5, -2.0]).bfloat16(),
        torch.tensor(True),
        torch.zeros(0, dtype=torch.uint8),
    ):
        back = extension.unpack_value(extension.pack_value(value))
        assert back.dtype == value.dtype
        assert torch.equal(back, value.flatten())
    uniform = extension.pack_value(torch.tensor(7).expand(1 << 20))
    assert len(uniform) < 64
    assert extension.unpack_value(uniform).shape == (1 << 20,)


def test_shadow_of_random_operators_is_unknown(extension: ModuleType) -> None:
    assert not extension.has_value(torch.rand(3, device="cuda"))
    assert not extension.has_value(torch.randint(0, 5, (3,), device="cuda"))
    assert torch.randperm(5, device="cuda").tolist() == [0, 1, 2, 3, 4]
