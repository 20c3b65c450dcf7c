"""One job on this CPU, for real and simulated: fails for a wrong simulator, not for a loaded machine."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from interpose import build

from . import gpu
from .cpu import CpuJob, Result, Runner
from .cpu_page import accepted, page

TINY = CpuJob(name="tiny", script="single.py", arguments=("--model", "mlp"), steps=8)

# Operators on the host's own tensors, such as AdamW's step counters, are host time in the simulation.
HOST_OPERATORS = {"add_", "item", "_local_scalar_dense", "to"}


@pytest.mark.skipif(not build.is_current(), reason="extension not built: python -m interpose.build")
def test_a_job_runs_the_same_operators_in_about_the_same_time(tmp_path: Path) -> None:
    runner = Runner(tmp_path, clock="cpu")
    trace = tmp_path / "trace.json"
    real_s = runner.real(TINY, trace=trace)
    cluster = tmp_path / "cluster.toml"
    cluster.write_text('name = "here"\nbase = "local-cpu"\n')
    virtual_s, measured, run = runner.simulated(TINY, cluster=cluster, store=tmp_path / "kernels.sqlite")
    assert measured > 0.99
    summary = json.loads((run / "summary.json").read_text())
    assert {kernel["source"] for kernel in summary["top_kernels"]} == {"measured"}
    # CPU time on both sides, so that other processes cost little; a factor of two is a wrong simulator.
    assert 0.4 < virtual_s / real_s < 2.5
    budget = runner.budget(run, trace, real_s)
    different = {
        o["op"]: (o["virtual_count"], o["real_count"])
        for o in budget["operators"]
        if o["virtual_count"] != o["real_count"] and o["op"] not in HOST_OPERATORS
    }
    assert different == {}
    parts = [
        budget["inventory_s"], budget["host_s"], budget["overlap_s"],
        *budget["kernels_s"].values(), *budget["collectives_s"].values(),
    ]  # fmt: skip
    assert sum(parts) == pytest.approx(budget["error_s"], rel=1e-9)
    # The kernels can be measured elsewhere from what the run leaves.
    assert len((run / "kernels.jsonl").read_text().splitlines()) > 20


def result(name: str, real_s: list[float], virtual_s: float, failure: str = "") -> Result:
    job = CpuJob(name=name, script="single.py")
    return Result(job, real_s=real_s, virtual_s=[virtual_s], measured_share=1.0, failure=failure)


def test_limits_and_rows_that_fail_are_shown() -> None:
    good = [result(f"job {i}", [1.0, 1.0, 1.0], 1.05) for i in range(3)]
    assert accepted(good)
    assert not accepted([*good, result("slow", [1.0, 1.0, 1.0], 1.2)])
    # Twice the spread of the real runs is allowed where it is larger than the limit.
    assert accepted([*good, result("noisy", [0.8, 1.0, 1.2], 1.2)])
    broken = [*good, result("broken", [], 0.0, failure="it fell over\nand more")]
    assert not accepted(broken)
    assert "it fell over" in page(broken, rounds=1, took_s=1.0)
    assert "past the limit" in page([result("slow", [1.0, 1.0, 1.0], 1.2)], rounds=1, took_s=1.0)


def test_the_gpu_check_says_that_there_is_no_gpu(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:  # fmt: skip # noqa: E501
    monkeypatch.setattr(gpu, "gpu_name", lambda: None)
    assert gpu.main([]) == 2
    assert "no CUDA GPU" in capsys.readouterr().err
    monkeypatch.setattr(gpu, "gpu_name", lambda: "NVIDIA Something 9000")
    assert gpu.main([]) == 2
    assert "no preset describes 'NVIDIA Something 9000'" in capsys.readouterr().err


def test_gpus_are_found_by_the_name_that_cuda_gives_them() -> None:
    assert gpu.preset_of("NVIDIA H100 80GB HBM3") == "h100-sxm"
    assert gpu.preset_of("NVIDIA H200") == "h200-sxm"
    assert gpu.preset_of("nothing") is None
