"""The generic job under `phantom run`: what the accuracy page takes for granted about it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import simulation

from interpose import build
from tests.accuracy.runs import HERE

pytestmark = pytest.mark.skipif(
    not build.is_current(), reason="extension not built: python -m interpose.build"
)

SMALL = "--layers 4 --hidden 512 --heads 8 --ffn 2048 --vocabulary 1024 --length 512 --micro-batch 4"


def run_job(folder: Path, ranks: int, more: str) -> dict[str, Any]:
    """Run the job on *ranks* GPUs of a DGX A100 and return its summary."""
    job = str(HERE / "gpt_job" / "train.py")
    options = ("-q", "--cluster", "a100-dgx", "--kernels", "predict")
    arguments = [*SMALL.split(), *more.split()]
    return simulation.simulate(folder / "run", job, *arguments, gpus=ranks, options=options).summary


@pytest.mark.parametrize(
    "options",
    ["--style mpt --parallel fsdp1", "--style megatron --attention unfused --recompute full --tensor 2"],
    ids=["fsdp1", "tensor"],
)
def test_every_further_micro_batch_takes_the_same_time(tmp_path: Path, options: str) -> None:
    steps = run_job(tmp_path, 2, f"{options} --micro-batches 2 2 3 5 --steps 4")["steps"]
    two, three, five = (step["virtual_s"] for step in steps[1:])
    assert five == pytest.approx(two + 3 * (three - two), rel=5e-3)


def test_small_micro_batches_are_bound_by_the_host(tmp_path: Path) -> None:
    summary = run_job(tmp_path, 1, "--style mpt --parallel plain --micro-batches 2 --steps 3 --length 64")
    rank = summary["ranks"][0]
    busy_s = sum(entry["virtual_s"] for entry in summary["kernels"]) / 3
    assert rank["compute_s"] == pytest.approx(2 * busy_s, rel=0.05)
    assert summary["step_virtual_s"]["median"] > 1.5 * busy_s
