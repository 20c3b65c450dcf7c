"""Ranks share compiled graphs: what one device's code becomes for another, and that it is found."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch._dynamo.utils import counters
from torch._inductor import config
from torch._inductor.codecache import FxGraphCache
from torch._inductor.graph import GraphLowering

from interpose.triton import shared_graphs

from .attached import attach

EXTENSION, LAUNCHES = attach()


@pytest.fixture
def codes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Inductor's output code of every compilation, with a cache of its own."""
    found: list[str] = []
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(GraphLowering, "save_output_code", staticmethod(found.append))
    counters.clear()
    yield found
    torch.cuda.set_device(0)
    torch._dynamo.reset()


def work(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    noise = torch.rand(x.shape[0], 1, device=x.device)
    return torch.nn.functional.silu(x @ w + noise).softmax(-1).sum(0)


def compiled_on(index: int) -> None:
    torch._dynamo.reset()
    torch.cuda.set_device(index)
    x = torch.empty(64, 32, device="cuda", requires_grad=True)
    w = torch.empty(32, 96, device="cuda", requires_grad=True)
    torch.compile(work)(x, w).sum().backward()
    assert x.grad is not None
    assert x.grad.device.index == index


def without_labels(code: str) -> str:
    """The code without what counts compilations and where kernels are kept."""
    return re.sub(r"kernel path: \S+|# AOT ID: .*", "", code)


def test_a_second_device_takes_the_first_ones_graph(codes: list[str]) -> None:
    compiled_on(0)
    assert counters["aot_autograd"]["autograd_cache_miss"] == 1
    assert len(codes) == 2
    compiled_on(3)
    assert counters["aot_autograd"]["autograd_cache_hit"] == 1
    assert counters["inductor"]["fxgraph_cache_hit"] == 2
    assert len(codes) == 4
    assert not any("cuda:0" in code for code in codes[2:])
    assert not shared_graphs._held.descriptors


def test_the_code_is_what_the_device_would_have_compiled_itself(
    codes: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled_on(0)
    compiled_on(3)
    taken = codes[2:]
    codes.clear()
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "own"))
    compiled_on(3)
    assert counters["aot_autograd"]["autograd_cache_miss"] == 2
    assert [without_labels(code) for code in taken] == [without_labels(code) for code in codes]


def test_a_graph_of_another_device_than_the_current_is_its_own(codes: list[str]) -> None:
    torch.cuda.set_device(0)
    torch.compile(lambda x: x.sin() + 1)(torch.empty(64, 8, device="cuda:2"))
    torch._dynamo.reset()
    torch.cuda.set_device(1)
    torch.compile(lambda x: x.sin() + 1)(torch.empty(64, 8, device="cuda:1"))
    assert not counters["inductor"]["fxgraph_cache_hit"]
    assert "cuda:2" in codes[0]
    assert "cuda:1" in codes[1]


def test_autotuning_is_left_to_each_rank(codes: list[str]) -> None:
    with config.patch(max_autotune=True):
        assert not shared_graphs.shares()
    with config.patch({"aten_distributed_optimizations.spmd_check": True}):
        assert not shared_graphs.shares()
    assert shared_graphs.shares()


def test_a_graph_with_constants_on_the_device_is_not_kept(codes: list[str]) -> None:
    table = torch.arange(4.0, device="cuda")
    graph = type("Graph", (), {"constants": {"table": table}})()
    FxGraphCache._save_graph("key", graph, [], True, None)  # would refuse what is no CompiledFxGraph
    graph.constants = {"table": table.cpu()}
    with pytest.raises(AssertionError, match="serialization"):
        FxGraphCache._save_graph("key", graph, [], True, None)


def test_numbers_that_are_no_device_stay() -> None:
    code = (
        "x = num_load=1; stream1(1); cuda:1 cuda:12 upstream1 index=1 DeviceProperties(type='cuda', index=1)"
    )
    assert shared_graphs.for_device(code, 1, 5) == (
        "x = num_load=1; stream5(1); cuda:5 cuda:12 upstream1 index=1 DeviceProperties(type='cuda', index=5)"
    )
