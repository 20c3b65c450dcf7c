"""torch.compile, Triton and CUDA graphs in jobs of several ranks, under `phantom run`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import simulation

HERE = Path(__file__).parent


def run_job(
    tmp_path: Path, script: Path, *, gpus: int, **environment: str
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Runs a script; returns the summary and the JSON line that each rank printed last."""
    done = simulation.simulate(tmp_path / "run", str(script), gpus=gpus, environment=environment)
    said = [[json.loads(line) for line in log.splitlines() if line.startswith("{")] for log in done.logs]
    return done.summary, [lines[-1] for lines in said if lines]


def test_ranks_compile_a_kernel_once_between_them(tmp_path: Path) -> None:
    _, ranks = run_job(tmp_path, HERE / "shared_cache_job.py", gpus=2)
    assert len(ranks) == 2
    compiled, found = (sum(rank[what] for rank in ranks) for what in ("compiled", "found"))
    assert compiled > 0
    assert compiled == found, "each kernel was compiled by one rank and found by the other"


def test_a_folder_of_the_user_is_used_and_keeps_kernels_for_the_next_run(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    first, second = (
        run_job(tmp_path / name, HERE / "shared_cache_job.py", gpus=1, TORCHINDUCTOR_CACHE_DIR=str(cache))[1][
            0
        ]
        for name in ("first", "second")
    )
    assert first["compiled"] > 0
    assert second["compiled"] == 0
    assert list(cache.rglob("*.cubin"))


def test_compile_workers_compile_and_never_become_ranks(tmp_path: Path) -> None:
    summary, ranks = run_job(
        tmp_path, HERE / "shared_cache_job.py", gpus=1, TORCHINDUCTOR_COMPILE_THREADS="2"
    )
    assert summary["world_size"] == 1
    assert ranks[0]["rank"] == 0
    assert any(kernel["class"] == "triton" for kernel in summary["kernels"])


def test_a_collective_in_a_cuda_graph_is_replayed(tmp_path: Path) -> None:
    summary, ranks = run_job(tmp_path, HERE / "graphed_collective_job.py", gpus=2)
    (all_reduce,) = [c for c in summary["collectives"] if c["kind"] == "all_reduce"]
    assert all_reduce["count"] == 2 + 5, "two outside of the graph, five replays, none by the capture"
    for rank in ranks:
        assert len(set(rank["replays_ms"])) == 1
        assert rank["replays_ms"][0] == pytest.approx(rank["eager_ms"], rel=0.1)


def test_a_compiled_fsdp2_script_runs_unmodified(tmp_path: Path) -> None:
    summary, _ = run_job(tmp_path, HERE.parent / "workloads" / "fsdp2.py", gpus=2, COMPILE="1")
    assert summary["coverage"]["unpriced"] == 0.0, summary["unpriced_ops"]
    assert any(kernel["class"] == "triton" for kernel in summary["kernels"])
    assert len(summary["steps"]) == 12
