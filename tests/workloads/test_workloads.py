"""Real scripts, unmodified, under `phantom run`: they end well and their figures make sense."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import simulation

HERE = Path(__file__).parent
MIB = 1 << 20


def simulate(
    tmp_path: Path, script: str, *args: str, nodes: int = 1, gpus: int = 2, **environment: str
) -> tuple[dict[str, Any], str]:
    """Runs a script and returns (summary, what rank 0 printed). Fails with the log when the job does."""
    done = simulation.simulate(
        tmp_path / "run",
        str(HERE / script),
        *args,
        nodes=nodes,
        gpus=gpus,
        environment={"CKPT": str(tmp_path / "checkpoint"), **environment},
    )
    summary = done.summary
    assert summary["status"] == "ok"
    assert summary["world_size"] == nodes * gpus
    assert summary["coverage"]["unpriced"] == 0.0, summary["unpriced_ops"]
    for rank in summary["ranks"]:
        assert rank["ops"] > 0
        assert rank["peak_reserved_bytes"] >= rank["peak_allocated_bytes"] > 0
    return summary, done.logs[0]


@pytest.mark.parametrize(
    ("script", "steps"),
    [
        ("ddp.py", 20),
        ("fsdp1.py", 12),
        ("fsdp2.py", 12),
        ("amp_scaler.py", 6),
        ("checkpointing.py", 5),
        ("dcp_zero.py", 4),
        ("resnet_syncbn.py", 32),
        ("lstm_embeddingbag.py", 6),
        ("unet_diffusion.py", 4),
        ("early_stopping.py", 40),
        ("host_services.py", 4),
    ],
)
def test_a_plain_script_runs_unmodified(tmp_path: Path, script: str, steps: int) -> None:
    summary, _ = simulate(tmp_path, script)
    assert len(summary["steps"]) == steps
    assert all(step["virtual_s"] > 0 for step in summary["steps"])
    assert not any("RANK" in warning for warning in summary["warnings"]), (
        "no clock may be taken out of the horizon"
    )


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "interleaved", "zb", "zbv"])
def test_pipeline_schedules(tmp_path: Path, schedule: str) -> None:
    summary, log = simulate(tmp_path, "pp.py", SCHED=schedule)
    assert len(summary["steps"]) == 12
    assert any(entry["kind"] in ("send", "recv", "p2p", "send_recv") for entry in summary["collectives"]), log


def test_tensor_parallel_with_fsdp_on_two_nodes(tmp_path: Path) -> None:
    summary, _ = simulate(tmp_path, "tp.py", nodes=2, gpus=2)
    assert len(summary["steps"]) == 12


def test_hybrid_sharding_with_checkpointing(tmp_path: Path) -> None:
    summary, _ = simulate(tmp_path, "fsdp2.py", nodes=2, gpus=2, HSDP="1", AC="1")
    assert len(summary["steps"]) == 12


def test_a_large_model_initialised_on_the_cpu_takes_little_memory(tmp_path: Path) -> None:
    summary, log = simulate(tmp_path, "big_cpu_init.py", "8")
    assert "1.87B parameters" in log
    assert summary["ranks"][0]["peak_allocated_bytes"] > 2 * 2 * 1.87e9, "weights and gradients in bf16"


def test_a_loop_that_never_waits_shows_the_speed_of_the_gpu(tmp_path: Path) -> None:
    summary, _ = simulate(tmp_path, "never_syncs.py")
    # 300 products of 4096^3 a step at a peak of 989 TFLOP/s; launching them takes under 2 ms.
    at_peak_s = 300 * 2 * 4096**3 / 989e12
    assert at_peak_s < summary["step_virtual_s"]["median"] < 2.5 * at_peak_s


def test_peak_memory_is_what_one_computes_by_hand(tmp_path: Path) -> None:
    summary, log = simulate(tmp_path, "memory_by_hand.py", gpus=1)
    # Five tensors of 4 MiB and a 32 MiB cuBLAS workspace (Hopper) for each of the two threads that multiply.
    expected = 5 * 4 * MIB + 2 * 32 * MIB
    assert f"allocated {expected} " in log
    assert summary["ranks"][0]["peak_allocated_bytes"] == expected
    # Tensors under 10 MiB come from 20 MiB segments: exactly one; each workspace has a segment of its own.
    assert summary["ranks"][0]["peak_reserved_bytes"] == 20 * MIB + 2 * 32 * MIB


def test_two_runs_agree_to_the_bit(tmp_path: Path) -> None:
    results = []
    for attempt in ("a", "b"):
        (tmp_path / attempt).mkdir()
        summary, _ = simulate(tmp_path / attempt, "ddp.py", WORKERS="2")
        results.append((summary["steps"], [rank["steps_virtual_s"] for rank in summary["ranks"]]))
    assert results[0] == results[1]
