"""Pipelines idle as their schedule's formula says: equal stages, a network and a host that take no time."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest
import simulation

HERE = Path(__file__).parent
MICRO_BATCHES = 8
RANKS = 4
SMALL_KERNEL_MS = 0.0022

needs_megatron = pytest.mark.skipif(
    importlib.util.find_spec("megatron") is None, reason="megatron-core is not installed (extra `frameworks`)"
)


def simulate(folder: Path, script: str, *arguments: str, gpus: int) -> tuple[list[str], dict[str, Any]]:
    """Runs a script; returns the ranks' logs and the summary."""
    out = folder / f"run-{gpus}-{'-'.join(arguments).strip('-')}"
    options = ("-q", "--cpu-time", "none", "--cluster", str(HERE / "infinite_network.toml"))
    done = simulation.simulate(
        out,
        str(HERE / "scripts" / script),
        *arguments,
        gpus=gpus,
        options=options,
        environment={"TORCHDYNAMO_DISABLE": "1"},
        timeout_s=250,
    )
    return done.logs, done.summary


def schedule_ms(logs: list[str]) -> float:
    """The longest time of the schedule that a rank measured with CUDA events."""
    return max(float(re.findall(r"schedule_ms ([\d.]+)", log)[-1]) for log in logs)


def peaks(logs: list[str]) -> list[int]:
    return [int(re.findall(r"peak (\d+)", log)[-1]) for log in logs]


@needs_megatron
def test_megatron_1f1b_and_interleaved_1f1b(tmp_path: Path) -> None:
    """1F1B idles (p-1)/m of its work, v virtual stages a v-th of that (Narayanan et al., SC21, 2.2)."""
    alone, _ = simulate(tmp_path, "megatron_pipeline.py", gpus=1)
    work_ms = schedule_ms(alone)
    plain, _ = simulate(tmp_path, "megatron_pipeline.py", gpus=RANKS)
    bubble = schedule_ms(plain) / work_ms - 1
    assert bubble == pytest.approx((RANKS - 1) / MICRO_BATCHES, rel=0.03)
    # A stage holds as many micro-batches as stages follow it, itself included: the first most.
    assert peaks(plain)[1] > peaks(plain)[2] > peaks(plain)[3]
    virtual, _ = simulate(tmp_path, "megatron_pipeline.py", "--virtual", "2", "--blocks", "1", gpus=RANKS)
    bubble = schedule_ms(virtual) / work_ms - 1
    assert bubble == pytest.approx((RANKS - 1) / (2 * MICRO_BATCHES), rel=0.03)


@needs_megatron
def test_recomputation_adds_the_forward_pass(tmp_path: Path) -> None:
    """Full recomputation runs every forward product a second time: a third of the work of a linear stage."""
    plain, before = simulate(tmp_path, "megatron_pipeline.py", "--blocks", "6", gpus=1)
    again, after = simulate(tmp_path, "megatron_pipeline.py", "--blocks", "6", "--recompute", gpus=1)
    products = [
        sum(k["virtual_s"] for k in s["top_kernels"] if k["name"] == "aten::mm") for s in (before, after)
    ]
    counts = [sum(k["count"] for k in s["top_kernels"] if k["name"] == "aten::mm") for s in (before, after)]
    assert counts[1] == counts[0] * 4 / 3
    assert products[1] / products[0] == pytest.approx(4 / 3, rel=0.03)
    forward_s = products[0] / 3 / 3  # of one step of three
    added_s = (schedule_ms(again) - schedule_ms(plain)) * 1e-3
    assert added_s == pytest.approx(forward_s, rel=0.03)


def expected_ms(orders: list[list[str]], *, forward: float, data: float, weight: float) -> float:
    """End of the last action when every rank does its actions in order, each once what it needs is there.

    `2F0`: forward of stage 2, micro-batch 0; `I`: gradient of its input; `W`: of its weight. The first stage
    has no gradient of its input.
    """
    last = max(int(re.match(r"\d+", action).group()) for order in orders for action in order)  # type: ignore[union-attr]
    ends: dict[str, float] = {}
    clocks = [0.0] * len(orders)
    places = [0] * len(orders)
    while any(place < len(order) for place, order in zip(places, orders)):
        moved = False
        for rank, order in enumerate(orders):
            while places[rank] < len(order):
                stage, kind, batch = re.fullmatch(r"(\d+)([FIW])(\d+)", order[places[rank]]).groups()  # type: ignore[union-attr]
                number = int(stage)
                needs = {
                    "F": f"{number - 1}F{batch}" if number else None,
                    "I": f"{number + 1}I{batch}" if number < last else f"{number}F{batch}",
                    "W": f"{number}I{batch}",
                }[kind]
                if needs is not None and needs not in ends:
                    break
                cost = {"F": forward, "I": data if number else 0.0, "W": weight}[kind]
                clocks[rank] = max(clocks[rank], ends.get(needs or "", 0.0)) + cost
                ends[order[places[rank]]] = clocks[rank]
                places[rank] += 1
                moved = True
        assert moved, "the schedule waits for itself"
    return max(clocks)


@pytest.mark.parametrize("kind", ["zb", "zbv"])
def test_zero_bubble(tmp_path: Path, kind: str) -> None:
    """The weight's gradient fills the bubble (Qi et al., ICLR 2024)."""
    logs, _ = simulate(tmp_path, "torch_pipeline.py", "--schedule", kind, gpus=RANKS)
    forward, data, weight = map(float, re.findall(r"parts ([\d.]+) ([\d.]+) ([\d.]+)", logs[1])[0])
    orders = [
        [action for action in line.split() if action != "-"]
        for line in re.findall(r"^order \d+ (.*)$", logs[0], re.MULTILINE)
    ]
    expected = expected_ms(orders, forward=forward, data=data, weight=weight)
    stages = len(orders) if kind == "zb" else 2 * len(orders)
    work = MICRO_BATCHES * stages / len(orders) * (forward + data + weight)
    # The last stage keeps each micro-batch's loss: one small kernel.
    expected += MICRO_BATCHES * SMALL_KERNEL_MS
    measured = schedule_ms(logs)
    assert measured - work == pytest.approx(expected - work, rel=0.03)
    # ZB-H1's bubble is (p-1)(F + B - W); without the split it would be (p-1)(F + B + W).
    assert measured - work < (RANKS - 1) * (forward + data + weight) / 2
