"""Large CPU initialisations leave their pages untouched; small ones and integers are real."""

from __future__ import annotations

import os
from types import ModuleType

import pytest
import torch

LARGE = (4096, 4096)  # 64 MiB in float32, above the default threshold of 16 MiB


def resident_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE")


def test_random_weights_take_no_memory(device: ModuleType) -> None:
    # torch imports modules of its own at the first of these
    torch.nn.init.trunc_normal_(torch.empty(8, 8)).normal_().to(torch.bfloat16)
    before, counted = resident_bytes(), device.host_lazy_bytes()
    weights = [torch.empty(LARGE).normal_() for _ in range(8)]
    weights += [torch.nn.init.trunc_normal_(torch.empty(LARGE), std=0.02) for _ in range(2)]
    weights += [w.to(torch.bfloat16) for w in weights]
    # 960 MiB of weights: less than one of the ten may have become real.
    assert resident_bytes() - before < 60 << 20
    assert device.host_lazy_bytes() - counted >= 10 * 64 << 20
    assert weights[0][17, 5] == 0


def test_a_linear_layer_takes_no_memory(device: ModuleType) -> None:
    before = resident_bytes()
    layer = torch.nn.Linear(4096, 8192, bias=False)
    assert resident_bytes() - before < 16 << 20
    assert layer.weight.shape == (8192, 4096)


def test_reused_memory_reads_as_zeros(device: ModuleType) -> None:
    tensor = torch.arange(1 << 23, dtype=torch.float32)
    assert tensor.uniform_().sum() == 0


def test_zero_is_exact_for_every_dtype(device: ModuleType) -> None:
    tensor = torch.arange(1 << 23)
    assert tensor[3:].zero_().sum() == 0
    assert tensor[2] == 2


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool])
def test_integers_are_filled(device: ModuleType, dtype: torch.dtype) -> None:
    assert torch.ones(32 << 20, dtype=dtype).sum() == 32 << 20


def test_small_tensors_are_real(device: ModuleType) -> None:
    torch.manual_seed(0)
    values = torch.empty(100_000).normal_()
    assert values.std() == pytest.approx(1.0, abs=0.02)
    assert values.clone().fill_(3).sum() == 300_000
    assert torch.zeros(3).add_(1).mul_(4).div_(2).clamp_(0, 1).tolist() == [1, 1, 1]
    assert torch.erfinv(torch.tensor([0.5])).item() == pytest.approx(0.4769, abs=1e-4)


def test_what_was_written_is_kept(device: ModuleType) -> None:
    tensor = torch.empty(LARGE).normal_()
    tensor[100, 100] = 7
    copy = tensor.to(torch.float64)
    assert copy[100, 100] == 7
    assert copy.sum() == 7
    assert tensor.mul_(2)[100, 100] == 14
    assert torch.empty(LARGE).zero_().add_(1)[5, 5] == 1


def test_views_and_shared_memory_are_real(device: ModuleType) -> None:
    base = torch.empty(LARGE).zero_()
    base[:, ::2].fill_(1)  # not dense: the other columns must stay
    assert base[0, :4].tolist() == [1, 0, 1, 0]
    shared = torch.empty(LARGE).share_memory_()
    assert shared.fill_(2)[3, 3] == 2
