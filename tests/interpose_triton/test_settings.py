"""Inductor's settings for a simulated GPU hold in every thread: a backward graph may be compiled in one of
autograd's."""

from __future__ import annotations

import threading

import torch
from torch import nn

from .attached import attach

EXTENSION, LAUNCHES = attach()


class CompiledInBackward(torch.autograd.Function):
    """Compiles while autograd's own thread runs the backward pass."""

    @staticmethod
    def forward(ctx, x):  # type: ignore[no-untyped-def]
        return x * 2

    @staticmethod
    def backward(ctx, gradient):  # type: ignore[no-untyped-def]
        assert threading.current_thread() is not threading.main_thread()
        return torch.compile(lambda g: (g * 3).relu() + 1)(gradient)


def test_settings_hold_in_other_threads() -> None:
    from torch._inductor import config

    seen: list[bool] = []
    reader = threading.Thread(target=lambda: seen.append(config.use_static_cuda_launcher))
    reader.start()
    reader.join()
    assert seen == [False]
    assert config.use_static_cuda_launcher is False


def test_what_is_compiled_in_the_autograd_thread_is_launched() -> None:
    x = nn.Parameter(torch.ones(4096, device="cuda"))
    LAUNCHES.priced.clear()
    CompiledInBackward.apply(x).sum().backward()
    assert x.grad is not None
    assert any("relu" in name for name in LAUNCHES.triton())
