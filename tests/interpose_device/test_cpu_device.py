"""The CPU as the device: launches block, host copies are free. Host time measured on the thread's clock."""

from __future__ import annotations

import time
from collections.abc import Iterator
from types import ModuleType

import pytest
import torch

from .conftest import CONFIG

MS = 1_980_000  # cycles of one millisecond


@pytest.fixture
def blocking(device: ModuleType) -> Iterator[ModuleType]:
    device.install({**CONFIG, "blocking_launches": True})
    yield device
    device.install({**CONFIG, "blocking_launches": False})


@pytest.fixture
def measured(device: ModuleType) -> Iterator[ModuleType]:
    device.install({**CONFIG, "cpu_time": "measured"})
    yield device
    device.set_cost_callback(None)
    device.install({**CONFIG, "cpu_time": "model"})


def now_s(extension: ModuleType) -> float:
    return extension.clock_now_ps() / 1e12


def burn(seconds: float) -> None:
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


def test_a_launch_returns_when_its_kernel_has_ended(blocking: ModuleType) -> None:
    before = now_s(blocking)
    torch.cuda._sleep(10 * MS)
    assert now_s(blocking) - before == pytest.approx(0.010, rel=0.01)


def test_host_copies_are_none(blocking: ModuleType) -> None:
    host = torch.ones(1 << 20)
    before = now_s(blocking)
    there = host.cuda()
    there.cpu()
    assert now_s(blocking) - before < 100e-6  # over PCIe it would be some 400 us


def test_dropout_keeps_attention_off_the_flash_kernel(blocking: ModuleType) -> None:
    def chosen(dropout: float) -> int:
        q = torch.empty(1, 2, 8, 16, device="cuda")
        return int(torch._fused_sdp_choice(q, q, q, dropout_p=dropout))

    math = int(torch.nn.attention.SDPBackend.MATH.value)
    assert chosen(0.0) != math
    assert chosen(0.1) == math


@pytest.mark.parametrize("cpu_time", ["measured", "model"])
def test_new_pages_of_a_tensor_are_faulted_in(device: ModuleType, cpu_time: str) -> None:
    # Above malloc's largest threshold (32 MiB) memory is mapped anew each time: 16,384 pages. Only measured
    # host time counts them: a modelled one must not depend on the machine.
    device.install({**CONFIG, "blocking_launches": True, "cpu_time": cpu_time})
    try:
        for _ in range(2):
            before = now_s(device)
            held = torch.empty(64 << 20, dtype=torch.uint8, device="cuda")
            took = now_s(device) - before
            assert (took > 16_384 * 50e-9) == (cpu_time == "measured")
            del held
    finally:
        device.install({**CONFIG, "blocking_launches": False, "cpu_time": "model"})


def test_measured_time_is_what_the_script_computes(measured: ModuleType) -> None:
    x = torch.ones(8, device="cuda")
    x + 1
    before = now_s(measured)
    burn(0.05)
    x + 1
    assert 0.05 <= now_s(measured) - before < 0.06


def test_measured_time_leaves_out_the_hooks_own(measured: ModuleType) -> None:
    # Every operator has a new shape, so that its metadata is derived and its cost asked for: 2 ms each.
    torch.ones(8, device="cuda") + 1
    measured.set_cost_callback(lambda request: burn(0.002) or b"")
    started, before = time.thread_time(), now_s(measured)
    failed = 0
    for size in range(100, 130):
        try:
            torch.ones(size, device="cuda") + 1
        except RuntimeError:  # an empty answer is refused, after the time is spent
            failed += 1
    spent = time.thread_time() - started
    assert spent > 0.06
    assert now_s(measured) - before < spent / 4


def test_measured_time_follows_each_threads_own_clock(measured: ModuleType) -> None:
    # The autograd thread goes on with the main thread's virtual clock, not with its CPU time.
    burn(0.3)
    w = torch.ones(8, device="cuda", requires_grad=True)
    (w * 2).sum().backward()
    started, before = time.process_time(), now_s(measured)
    for _ in range(5):
        (w * 2).sum().backward()
    assert now_s(measured) - before <= time.process_time() - started + 0.001
