"""CUDA graphs: capture, replay, Inductor's graph trees, make_graphed_callables."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from .attached import attach, device_ms

EXTENSION, LAUNCHES = attach()


def many_small_kernels(x: torch.Tensor) -> torch.Tensor:
    for _ in range(50):
        x = x + 1
    return x


def captured(call) -> tuple[torch.cuda.CUDAGraph, torch.Tensor]:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = call()
    return graph, out


def test_a_replay_costs_one_launch() -> None:
    x = torch.ones(1024, device="cuda")
    many_small_kernels(x)
    before_ps = EXTENSION.clock_now_ps()
    many_small_kernels(x)
    eager_host_ps = EXTENSION.clock_now_ps() - before_ps
    graph, _ = captured(lambda: many_small_kernels(x))
    torch.cuda.synchronize()
    before_ps = EXTENSION.clock_now_ps()
    graph.replay()
    replay_host_ps = EXTENSION.clock_now_ps() - before_ps
    assert replay_host_ps * 40 < eager_host_ps
    assert device_ms(graph.replay) < device_ms(lambda: many_small_kernels(x))


def test_a_capture_runs_nothing_and_a_replay_everything() -> None:
    x = torch.ones(1 << 26, device="cuda")
    x.exp()
    graph = torch.cuda.CUDAGraph()

    def capture() -> None:
        with torch.cuda.graph(graph):
            x.exp()

    kernel_ms = device_ms(lambda: x.exp())
    assert device_ms(capture) < 0.5 * kernel_ms
    assert device_ms(graph.replay) > 0.9 * kernel_ms


def test_a_replay_makes_what_it_writes_unknown() -> None:
    x, out = torch.zeros(8, device="cuda"), torch.zeros(8, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        torch.add(x, 1, out=out)
    out.fill_(3)
    assert EXTENSION.has_value(out)
    graph.replay()
    assert not EXTENSION.has_value(out)
    assert EXTENSION.has_value(x)


def test_waiting_for_the_device_inside_a_capture_is_refused() -> None:
    x = torch.zeros(8, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with pytest.raises(RuntimeError, match="capturing"), torch.cuda.graph(graph):
        x.sum().item()


def test_a_triton_kernel_in_a_graph_is_replayed() -> None:
    x = torch.ones(1 << 24, device="cuda")
    call = torch.compile(lambda t: t.sin() + 1)
    call(x)
    kernel_ms = device_ms(lambda: call(x))
    graph, _ = captured(lambda: call(x))
    assert device_ms(graph.replay, 3) == pytest.approx(3 * kernel_ms, rel=0.2)


def test_reduce_overhead_trains_with_one_launch_per_graph() -> None:
    model = nn.Sequential(
        *[nn.Sequential(nn.LayerNorm(64), nn.Linear(64, 64), nn.GELU()) for _ in range(4)]
    ).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.randn(32, 64, device="cuda")

    def host_ps(module: nn.Module) -> int:
        for _ in range(4):  # warm-up, recording, replay
            module(x).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        torch.cuda.synchronize()
        before_ps = EXTENSION.clock_now_ps()
        module(x).sum().backward()
        return EXTENSION.clock_now_ps() - before_ps

    plain_ps = host_ps(torch.compile(model))
    torch._dynamo.reset()
    graphed_ps = host_ps(torch.compile(model, mode="reduce-overhead"))
    assert graphed_ps < plain_ps
    assert torch._dynamo.utils.counters["inductor"]["cudagraph_skips"] == 0


def test_graph_trees_record_again_over_live_outputs() -> None:
    @torch.compile(mode="reduce-overhead")
    def scaled(t: torch.Tensor) -> torch.Tensor:
        return (t.sin() + 1) * 2

    kept = []
    for length in (1024, 2048, 1024, 4096, 2048, 1024):
        for _ in range(3):
            torch.compiler.cudagraph_mark_step_begin()
            out = scaled(torch.ones(length, device="cuda"))
        kept.append(out.clone())
    assert [len(t) for t in kept] == [1024, 2048, 1024, 4096, 2048, 1024]


def test_make_graphed_callables() -> None:
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64)).cuda()
    x = torch.randn(32, 64, device="cuda", requires_grad=True)
    graphed = torch.cuda.make_graphed_callables(model, (x,))
    out = graphed(torch.randn(32, 64, device="cuda", requires_grad=True))
    out.sum().backward()
    assert model[0].weight.grad is not None
    torch.cuda.synchronize()
