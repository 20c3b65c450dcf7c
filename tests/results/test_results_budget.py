"""Error budgets: the parts add up exactly, and errors that cancel are seen."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phantom.results.budget import StepParts, Work, budget_of, parts_of, union
from phantom.results.budget_names import collective_kind, operator_name
from phantom.results.compare import MeasurementError
from phantom.results.kineto_parts import kineto_parts

US = 10**6  # ps


def parts(
    kernels: dict[str, tuple[str, int, int]], *, total_us: int, steps: int = 1, **more: Any
) -> StepParts:
    return StepParts(
        steps=steps,
        total_ps=Fraction(total_us * US),
        kernels={n: Work(klass=k, count=c, total_ps=us * US) for n, (k, c, us) in kernels.items()},
        collectives_ps={kind: us * US for kind, us in more.get("collectives", {}).items()},
        overlap_ps=more.get("overlap_us", 0) * US,
    )


def test_errors_that_cancel_are_both_shown() -> None:
    # A product 30 us too slow, a missing copy of 10 us and a host 20 us too fast: the steps agree to the bit.
    virtual = parts({"mm": ("gemm", 2, 130)}, total_us=150)
    real = parts({"mm": ("gemm", 2, 100), "copy_": ("copy", 1, 10)}, total_us=150)
    budget = budget_of(virtual, real)
    assert budget.error_ps == 0
    assert dict(budget.parts()) == {
        "operator inventory": -10 * US,
        "kernel cost: gemm": 30 * US,
        "kernel cost: copy": 0,
        "launch and host time": -20 * US,
        "overlap": 0,
    }


def test_surplus_and_cost_of_one_operator_are_kept_apart() -> None:
    # 3 kernels of 40 us instead of 2 of 50 us: one too many (+40), two too fast (-20).
    budget = budget_of(
        parts({"mm": ("gemm", 3, 120)}, total_us=120), parts({"mm": ("gemm", 2, 100)}, total_us=100)
    )
    assert budget.inventory_ps == 40 * US
    assert budget.kernels_ps == {"gemm": -20 * US}
    assert budget.error_ps == 20 * US


def test_collectives_host_and_overlap() -> None:
    virtual = parts({"mm": ("gemm", 1, 50)}, total_us=90, collectives={"all_reduce": 40}, overlap_us=30)
    real = parts({"mm": ("gemm", 1, 50)}, total_us=100, collectives={"all_reduce": 60}, overlap_us=20)
    budget = budget_of(virtual, real)
    assert budget.collectives_ps == {"all_reduce": -20 * US}
    assert budget.overlap_ps == -10 * US  # more of it is hidden in the simulation
    assert budget.host_ps == 20 * US  # 30 instead of 10
    assert budget.error_ps == -10 * US


work = st.tuples(st.sampled_from(["gemm", "copy"]), st.integers(1, 9), st.integers(0, 999))
side = st.builds(
    lambda kernels, total, steps, comm, overlap: parts(
        kernels, total_us=total, steps=steps, collectives=comm, overlap_us=overlap
    ),
    st.dictionaries(st.sampled_from(["mm", "add", "copy_"]), work),
    st.integers(1, 9999),
    st.integers(1, 7),
    st.dictionaries(st.sampled_from(["all_reduce", "p2p"]), st.integers(0, 999)),
    st.integers(0, 99),
)


@given(side, side)
def test_parts_add_up_to_the_error_exactly(virtual: StepParts, real: StepParts) -> None:
    budget = budget_of(virtual, real)
    assert sum(part for _, part in budget.parts()) == budget.error_ps
    assert budget.error_ps == virtual.total_ps / virtual.steps - real.total_ps / real.steps
    assert sum(o.cost_ps for o in budget.operators) == sum(budget.kernels_ps.values())


def test_what_runs_at_once_is_counted_once() -> None:
    found = parts_of(
        steps=1, total_ps=Fraction(100),
        kernels=[("mm", "gemm", (0, 30)), ("add", "elementwise", (40, 60))],
        collectives=[("all_reduce", (20, 50)), ("all_reduce", (45, 70))],
    )  # fmt: skip
    assert found.kernels_ps == 50
    assert found.collectives_ps == {"all_reduce": 50}
    assert found.overlap_ps == 30  # 20..30 and 40..60
    assert found.host_ps == 30  # 70..100
    assert union([(5, 7), (1, 3), (2, 5)]) == [(1, 7)]


def event(
    name: str, begin_us: float, duration_us: float, *, cat: str = "cpu_op", tid: int = 1, **args: Any
) -> Any:
    return {
        "ph": "X",
        "cat": cat,
        "name": name,
        "ts": begin_us,
        "dur": duration_us,
        "pid": 1,
        "tid": tid,
        "args": args,
    }


def trace(folder: Path, events: list[Any]) -> Path:
    path = folder / "trace.json"
    path.write_text(json.dumps({"traceEvents": events}))
    return path


def test_a_cpu_trace_is_taken_apart(tmp_path: Path) -> None:
    events = [
        event("aten::linear", 0, 40),
        event("aten::t", 1, 2),
        event("aten::addmm", 5, 30),
        event("aten::copy_", 6, 10),
        event("autograd::engine::evaluate_function: AddmmBackward0", 50, 20),
        event("aten::mm", 51, 18),
        event("gloo:all_reduce", 60, 25, cat="user_annotation", tid=2),
        event("Optimizer.step#SGD.step", 80, 20, cat="user_annotation"),
        event("aten::add_", 81, 10),
    ]
    found = kineto_parts(trace(tmp_path, events), known={"addmm", "mm", "add_"})
    assert (found.steps, found.total_ps) == (1, 100 * US)
    # The copy belongs to the product that called it; the view is no kernel.
    assert {name: work.total_ps // US for name, work in found.kernels.items()} == {
        "addmm": 30,
        "mm": 18,
        "add_": 10,
    }
    assert found.collectives_ps == {"all_reduce": 25 * US}
    assert found.overlap_ps == (9 + 4) * US
    assert found.host_ps == (100 - 58 - 25 + 13) * US


def test_an_operator_that_the_simulation_lacks_is_taken_apart_into_its_leaves(tmp_path: Path) -> None:
    events = [
        event("aten::lstm", 0, 40), event("aten::mm", 1, 9), event("aten::tanh", 11, 5),
        event("Optimizer.step#SGD.step", 41, 9, cat="user_annotation"),
    ]  # fmt: skip
    assert set(kineto_parts(trace(tmp_path, events), known={"mm"}).kernels) == {"mm", "tanh"}


def test_chained_optimizers_are_one_step_and_a_backward_pass_parts_two(tmp_path: Path) -> None:
    events = [
        event("aten::mm", 0, 5),
        event("Optimizer.step#SGD.step", 10, 5, cat="user_annotation"),
        event("Optimizer.step#Adam.step", 20, 5, cat="user_annotation"),
        event("autograd::engine::evaluate_function: MmBackward0", 30, 5),
        event("Optimizer.step#SGD.step", 40, 5, cat="user_annotation"),
        event("Optimizer.step#Adam.step", 50, 5, cat="user_annotation"),
    ]
    found = kineto_parts(trace(tmp_path, events), known={"mm"})
    assert (found.steps, found.total_ps) == (2, 55 * US)


def test_a_gpu_trace_takes_kernels_by_their_operator(tmp_path: Path) -> None:
    events = [
        event("ProfilerStep#3", 0, 100, cat="user_annotation"),
        event("aten::mm", 0, 10, **{"External id": 7}),
        event("sm90_xmma_gemm", 20, 30, cat="kernel", tid=7, **{"External id": 7}),
        event("ncclDevKernel_AllReduce_Sum_bf16_RING_LL", 40, 30, cat="kernel", tid=9),
    ]
    found = kineto_parts(trace(tmp_path, events), known=())
    assert found.kernels == {"mm": Work(klass="gemm", count=1, total_ps=30 * US)}
    assert found.collectives_ps == {"all_reduce": 30 * US}
    assert found.overlap_ps == 10 * US


@pytest.mark.parametrize("content", ["[1]", "{}", "nonsense", '{"traceEvents": []}'])
def test_files_that_are_no_trace_with_steps_are_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "trace.json"
    path.write_text(content)
    with pytest.raises(MeasurementError, match=r"trace\.json"):
        kineto_parts(path, known=())


def test_names() -> None:
    assert operator_name("aten::cudnn_convolution") == operator_name("aten::convolution") == "convolution"
    assert operator_name("aten::add.Tensor") == "add"
    assert (
        collective_kind("gloo:all_reduce") == collective_kind("ncclDevKernel_AllReduce_Sum") == "all_reduce"
    )
    assert collective_kind("nccl:send") == collective_kind("gloo:recv") == "p2p"
    assert collective_kind("gloo:reduce_scatter") == "reduce_scatter"
    assert collective_kind("aten::mm") is None
