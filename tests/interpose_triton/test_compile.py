"""torch.compile: the kernels that Inductor makes are launched, priced, and save time."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from .attached import attach, device_ms

EXTENSION, LAUNCHES = attach()


class Block(nn.Module):
    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(hidden)
        self.up = nn.Linear(hidden, 4 * hidden)
        self.down = nn.Linear(4 * hidden, hidden)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(F.silu(self.up(self.norm(x))) * 1.5 + 0.5).relu()


def step(module: nn.Module, x: torch.Tensor) -> None:
    module(x).square().sum().backward()


def test_a_block_forward_and_backward_launches_fused_kernels_in_less_time() -> None:
    block = Block(512).cuda().bfloat16()
    x = torch.randn(8192, 512, device="cuda", dtype=torch.bfloat16)
    step(block, x)
    eager_ms = device_ms(lambda: step(block, x), 3)
    compiled = torch.compile(block)
    step(compiled, x)
    LAUNCHES.priced.clear()
    compiled_ms = device_ms(lambda: step(compiled, x), 3)
    assert 0 < compiled_ms < eager_ms
    names = [op for op in LAUNCHES.requests if op.startswith("triton::")]
    assert any("silu" in name and "layer_norm" not in name for name in names)
    assert any("native_layer_norm_backward" in name for name in names)
    assert all(name.split("_")[1] in ("poi", "red", "per") for name in names), names
    # Nothing is priced again in steady state.
    assert not LAUNCHES.priced


def test_a_pointwise_kernel_is_charged_its_tensors_bytes() -> None:
    a, b = (torch.randn(1 << 20, 32, device="cuda") for _ in range(2))
    add = torch.compile(lambda a, b: a * 2 + b.sin())
    add(a, b)
    facts = LAUNCHES.requests["triton::triton_poi_fused_add_mul_sin_0"]["sm"]
    assert facts["read_bytes"] == 2 * a.nbytes
    assert facts["written_bytes"] == a.nbytes
    assert facts["dot_flops"] == []
    assert 0 < facts["registers"] <= 255
    grid_x, grid_y, grid_z = facts["grid"]
    assert grid_x * grid_y * grid_z > 1000
    per_ms = 3 * a.nbytes / 3.35e12 * 1e3
    assert per_ms < device_ms(lambda: add(a, b)) < 1.5 * per_ms


def test_outputs_of_kernels_are_unknown_and_inputs_stay_known() -> None:
    known = torch.arange(8, device="cuda")
    assert EXTENSION.has_value(known)
    out = torch.compile(lambda t: t * 3 + 1)(known)
    assert not EXTENSION.has_value(out)
    assert EXTENSION.known_value(known).tolist() == list(range(8))


def test_a_mutated_argument_loses_its_value() -> None:
    counter = torch.zeros(8, device="cuda")

    @torch.compile
    def bump(t: torch.Tensor) -> None:
        t.add_(1)

    assert EXTENSION.has_value(counter)
    bump(counter)
    assert not EXTENSION.has_value(counter)


def test_an_out_that_is_resized_is_priced_as_what_it_becomes() -> None:
    torch.arange(1 << 20, device="cuda")
    assert LAUNCHES.requests["aten::arange.start_out"]["outs"][0][2] == [1 << 20]


def test_dynamic_shapes_are_priced_by_their_sizes() -> None:
    scale = torch.compile(lambda t: t.sin() * 2, dynamic=True)
    small = torch.randn(1 << 16, device="cuda")
    large = torch.randn(1 << 24, device="cuda")
    scale(small)
    compiles = sum(1 for op in LAUNCHES.requests if "mul_sin_0" in op)
    scale(large)
    assert sum(1 for op in LAUNCHES.requests if "mul_sin_0" in op) == compiles, "compiled once for all sizes"
    assert device_ms(lambda: scale(large)) > 5 * device_ms(lambda: scale(small))


def test_a_graph_break_leaves_two_compiled_parts() -> None:
    def broken(t: torch.Tensor) -> torch.Tensor:
        t = t.cos() + 1
        torch._dynamo.graph_break()
        return t.exp() - 1

    x = torch.randn(4096, device="cuda")
    torch.compile(broken)(x)
    assert any("add_cos" in op for op in LAUNCHES.requests)
    assert any("exp_sub" in op for op in LAUNCHES.requests)


def test_an_optimizer_step_compiles() -> None:
    model = nn.Sequential(*[nn.Linear(64, 64) for _ in range(4)]).cuda()
    optimizer = torch.optim.Adam(model.parameters(), lr=torch.tensor(1e-3))
    model(torch.randn(4, 64, device="cuda")).sum().backward()
    torch.compile(optimizer.step)()
    foreach = [op for op in LAUNCHES.requests if "for_fused" in op]
    assert 1 <= len(foreach) <= 2, sorted(LAUNCHES.requests)
    moved = sum(LAUNCHES.requests[op]["sm"]["written_bytes"] for op in foreach)
    parameters = sum(p.nbytes for p in model.parameters())
    # Parameters and both moments are written; programs are sampled, and each works on one of many tensors.
    assert moved == pytest.approx(3 * parameters, rel=0.05)


def test_max_autotune_asks_the_cost_model_and_takes_no_virtual_time() -> None:
    a = torch.randn(1024, 1024, device="cuda", dtype=torch.bfloat16)
    b = torch.randn(1024, 1024, device="cuda", dtype=torch.bfloat16)
    product = torch.compile(lambda a, b: (a @ b).relu(), mode="max-autotune-no-cudagraphs")
    first_ms = device_ms(lambda: product(a, b))
    steady_ms = device_ms(lambda: product(a, b))
    candidates = {op for op in LAUNCHES.requests if "triton_mm" in op or "triton_tem" in op}
    assert len(candidates) >= 2, "Triton's templates were candidates"
    flops = LAUNCHES.requests[min(candidates)]["sm"]["dot_flops"]
    assert flops == [["bfloat16", 2 * 1024**3]]
    # Dozens of candidates take no time; a few operators that the compilers run for themselves do.
    assert first_ms - steady_ms < 1.0
