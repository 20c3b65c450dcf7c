"""What DeepSpeed says of itself, and what ZeRO's formulas say of it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import simulation

from interpose import build

from .outcome import installed

ROOT = Path(__file__).parents[2]
pytestmark = [
    pytest.mark.skipif(not build.is_current(), reason="extension not built: python -m interpose.build"),
    pytest.mark.skipif(
        installed("deepspeed") == "-", reason="deepspeed is not installed (extra `frameworks`)"
    ),
]


def simulate(
    tmp_path: Path, script: str, *arguments: str, gpus: int, fails: bool = False
) -> tuple[str, dict[str, Any]]:
    """Rank 0's log and summary.json."""
    done = simulation.simulate(
        tmp_path / "run",
        str(ROOT / "tests" / "workloads" / script),
        *arguments,
        gpus=gpus,
        environment={"CUBLAS_WORKSPACE_CONFIG": ":16:8"},
        fails=fails,
    )
    return done.logs[0], done.summary


K = 12
"""Bytes of fp32 parameter, momentum and variance (Rajbhandari et al., ZeRO, SC 2020, section 3.1)."""


@pytest.mark.parametrize(
    ("stage", "bytes_per_parameter"),
    [(1, 2 + 2 + K / 4), (2, 2 + (2 + K) / 4), (3, (2 + 2 + K) / 4)],
)
def test_model_states_of_zero_follow_the_formula(
    tmp_path: Path, stage: int, bytes_per_parameter: float
) -> None:
    log, _ = simulate(tmp_path, "zero_memory.py", "--stage", str(stage), gpus=4)
    held = [float(text) for text in re.findall(r"([\d.]+) bytes each", log)]
    (parameters,) = {int(text) for text in re.findall(r"(\d+) parameters", log)}
    assert parameters > 100e6
    # The first pass has no optimizer state yet.
    assert held[1:] == pytest.approx([bytes_per_parameter] * 2, rel=0.03)


def test_offloading_moves_the_optimizer_to_host_memory_and_over_pcie(tmp_path: Path) -> None:
    log, summary = simulate(tmp_path, "zero_memory.py", "--stage", "2", "--offload", gpus=2)
    held = [float(text) for text in re.findall(r"([\d.]+) bytes each", log)]
    parameters = int(re.findall(r"(\d+) parameters", log)[0])
    assert held[2] == pytest.approx(2, rel=0.05), (
        "parameters in half precision, gradients pass through a bucket"
    )
    rank = summary["ranks"][0]
    # Momentum and variance in fp32 of this rank's half; master copy and gradients are page-locked.
    assert rank["host_held_bytes"]["DeepSpeed CPUAdam"] == pytest.approx(8 * parameters / 2, rel=0.03)
    assert rank["host_held_bytes"]["page-locked"] >= 4 * parameters / 2
    work = rank["host_work"]["DeepSpeed CPUAdam"]
    # 28 bytes per parameter at 112 GB/s for the server, of which each of two ranks has half.
    assert work["virtual_s"] == pytest.approx(3 * 28 * parameters / 2 / (112e9 / 2), rel=0.03)
    moved = {
        row["kind"]: row["bytes"] * row["count"]
        for row in summary["collectives"]
        if row["kind"] in ("h2d", "d2h")
    }
    assert {"h2d", "d2h"} <= set(moved)


def test_reports_are_in_virtual_time(tmp_path: Path) -> None:
    log, summary = simulate(tmp_path, "ds_reports.py", gpus=2)
    stopwatch_ms = [float(text) for text in re.findall(r"stopwatch ([\d.]+) ms", log)]
    assert len(stopwatch_ms) == 8
    assert len(summary["steps"]) == 8
    median_ms = 1e3 * summary["step_virtual_s"]["median"]
    assert median_ms == pytest.approx(sorted(stopwatch_ms)[4], rel=0.1)
    breakdown = re.findall(r"time \(ms\) \| fwd: ([\d.]+) \| bwd: ([\d.]+) .*? step: ([\d.]+)", log)
    assert sum(map(float, breakdown[-1])) == pytest.approx(stopwatch_ms[-1], rel=0.1)
    speeds = re.findall(r"CurrSamplesPerSec=([\d.]+)", log)
    assert float(speeds[-1]) == pytest.approx(2 * 512 / (stopwatch_ms[-1] / 1e3), rel=0.1)
    peaks = re.findall(r"MaxMemAllocated=([\d.]+)GB", log)
    assert float(peaks[-1]) == pytest.approx(summary["ranks"][0]["peak_allocated_bytes"] / 2**30, abs=0.02)
    # The communication log: gradients of 134 million bf16 parameters, once a step.
    assert re.search(r"256\.\d+ MB\s+8\s", log) is not None, log


@pytest.mark.parametrize(
    ("zero", "named"),
    [
        ('{"stage": 3, "offload_param": {"device": "nvme", "nvme_path": "/tmp"}}', "async_io"),
        ('{"stage": 3, "zero_quantized_weights": True}', "quantizer"),
    ],
)
def test_what_is_not_modelled_is_named_with_its_remedy(tmp_path: Path, zero: str, named: str) -> None:
    script = tmp_path / "train.py"
    script.write_text(f"""
import deepspeed, torch
deepspeed.init_distributed()
config = {{"train_micro_batch_size_per_gpu": 1, "bf16": {{"enabled": True}}, "zero_optimization": {zero},
          "optimizer": {{"type": "AdamW", "params": {{}}}}}}
with deepspeed.zero.Init(config_dict_or_path=config):
    model = torch.nn.Linear(64, 64)
deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
""")
    log, _ = simulate(tmp_path, str(script), gpus=1, fails=True)
    assert f"phantom does not simulate DeepSpeed's compiled operator '{named}'" in log
    assert "remedy:" in log
