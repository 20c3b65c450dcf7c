"""What megatron-core jobs hold is what the parallelism says; what they print is in virtual units."""

from __future__ import annotations

import importlib.util
import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import simulation

ROOT = Path(__file__).parents[2]
EAGER = {"TORCHDYNAMO_DISABLE": "1", "CUDA_DEVICE_MAX_CONNECTIONS": "1"}
CHECKOUT = os.environ.get("MEGATRON")
GIB = 1 << 30

needs_megatron = pytest.mark.skipif(
    importlib.util.find_spec("megatron") is None, reason="megatron-core is not installed (extra `frameworks`)"
)


def phantom(out: Path, *arguments: str, gpus: int, cwd: Path = ROOT) -> tuple[list[str], dict[str, Any]]:
    """Runs `phantom run`; returns the ranks' logs and the summary."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = simulation.simulate(out, *arguments, gpus=gpus, environment=EAGER | {"PATH": path}, cwd=cwd)
    return done.logs, done.summary


def example(folder: Path, arguments: str, *, gpus: int) -> tuple[list[str], dict[str, Any]]:
    out = folder / (arguments.replace("-", "").replace(" ", "-") or "plain")
    return phantom(out, str(ROOT / "examples" / "train_megatron.py"), *arguments.split(), gpus=gpus)


def peak_bytes(summary: dict[str, Any]) -> int:
    return max(rank["peak_allocated_bytes"] for rank in summary["ranks"])


@needs_megatron
def test_tensor_parallelism_and_the_distributed_optimizer_lower_memory_as_they_should(tmp_path: Path) -> None:
    size = "--layers 12 --hidden 1024 --steps 3 --micro-batches 1 --sequence 256"
    logs, replicated = example(tmp_path, size, gpus=2)
    _, sharded = example(tmp_path, f"{size} --distributed-optimizer", gpus=2)
    _, split = example(tmp_path, f"{size} --tp 2", gpus=2)
    # 12 layers of 4 + 8 h^2 (gated), two embeddings of 32,000 x h.
    parameters = 12 * (4 * 1024**2 + 3 * 4 * 1024**2) + 2 * 32000 * 1024
    # fp32 master copy and two moments: 12 bytes a parameter, of which each of two ranks keeps half.
    saved = peak_bytes(replicated) - peak_bytes(sharded)
    assert saved == pytest.approx(6 * parameters, rel=0.03)
    # Weights (2), gradients (4) and optimizer (12 bytes) are halved; what is left is activations.
    assert peak_bytes(replicated) > 18 * parameters
    assert 9 * parameters < peak_bytes(split) < 0.6 * peak_bytes(replicated)

    # The script's own clock and memory statistic.
    printed = re.findall(r"step (\d+) .* ([\d.]+) ms .* ([\d.]+) GiB", logs[0])
    assert len(printed) == len(replicated["steps"]) == 3
    for index, milliseconds, gib in printed[1:]:
        step = replicated["steps"][int(index)]["virtual_s"]
        assert float(milliseconds) * 1e-3 == pytest.approx(step, rel=0.01)
        assert float(gib) == pytest.approx(replicated["ranks"][0]["peak_allocated_bytes"] / GIB, abs=0.006)
    assert replicated["coverage"]["unpriced"] == 0.0


@pytest.mark.skipif(CHECKOUT is None, reason="MEGATRON=PATH names no checkout of Megatron-LM")
def test_megatrons_own_lines_are_in_virtual_units(tmp_path: Path) -> None:
    """Elapsed time, TFLOP/s and memory as pretrain_gpt.py prints them."""
    assert CHECKOUT is not None
    hidden, layers, sequence, batch, vocabulary = 1024, 4, 512, 8, 1024
    flags = (
        f"--num-layers {layers} --hidden-size {hidden} --num-attention-heads 16 --seq-length {sequence} "
        f"--max-position-embeddings {sequence} --mock-data --tokenizer-type NullTokenizer --vocab-size 1023 "
        f"--num-workers 0 --micro-batch-size 2 --global-batch-size {batch} --train-iters 5 --lr 1e-3 "
        "--lr-decay-style constant --eval-iters 0 --eval-interval 1000 --log-interval 1 --log-throughput "
        "--bf16"
    )
    logs, summary = phantom(
        tmp_path / "run", "torchrun", "--nproc-per-node", "2", "pretrain_gpt.py", *flags.split(), gpus=2,
        cwd=Path(CHECKOUT),
    )  # fmt: skip
    text = "\n".join(logs)
    lines = re.findall(
        r"iteration +(\d+)/.*elapsed time per iteration \(ms\): ([\d.]+) \| throughput per GPU "
        r"\(TFLOP/s/GPU\): ([\d.]+)",
        text,
    )
    assert len(lines) == 5
    flops = (
        6 * batch * sequence * hidden
        * (layers * (12 * hidden + sequence) + vocabulary)
    )  # fmt: skip
    for number, milliseconds, teraflops in lines[1:]:
        step = summary["steps"][int(number) - 1]["virtual_s"]
        assert float(milliseconds) * 1e-3 == pytest.approx(step, rel=0.03, abs=1e-4)
        assert float(teraflops) == pytest.approx(
            flops / 2 / float(milliseconds) * 1e3 / 1e12, rel=0.1, abs=0.06
        )
    allocated = re.findall(r"max allocated: ([\d.]+) \| reserved: [\d.]+ \| max reserved: ([\d.]+)", text)
    most, reserved = allocated[-1]
    peak = summary["ranks"][0]
    assert float(most) == pytest.approx(peak["peak_allocated_bytes"] / 2**20, rel=0.03)
    assert float(reserved) == pytest.approx(peak["peak_reserved_bytes"] / 2**20, rel=0.03)
