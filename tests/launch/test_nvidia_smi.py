"""nvidia-smi as a job meets it: the GPUs of the simulated node."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from phantom.launch import shims

DEVICE = {
    "name": "NVIDIA H100 80GB HBM3", "major": 9, "minor": 0, "total_memory": 84942979072,
    "clock_rate_khz": 1980000, "memory_clock_rate_khz": 2619000,
}  # fmt: skip


@pytest.fixture
def job(tmp_path: Path) -> dict[str, str]:
    """The environment of a job of two GPUs per node, on node 1."""
    config = json.dumps({"device_count": 2, "device": DEVICE})
    tools = shims.write_gpu_tools(tmp_path / "bin", path=os.environ["PATH"])
    return {**os.environ, **tools, "PHANTOM_CONFIG": config, "PHANTOM_NODE": "1"}


def ask(job: dict[str, str], *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["nvidia-smi", *options], env=job, capture_output=True, text=True, timeout=60)


def test_the_list_counts_the_gpus_of_the_node(job: dict[str, str]) -> None:
    lines = ask(job, "-L").stdout.splitlines()
    assert [line.split(" (UUID: GPU-")[0] for line in lines] == [
        f"GPU {i}: NVIDIA H100 80GB HBM3" for i in (0, 1)
    ]
    assert lines[0] != lines[1]
    other = ask(job | {"PHANTOM_NODE": "0"}, "-L").stdout.splitlines()
    assert not set(lines) & set(other)


def test_fields_by_query(job: dict[str, str]) -> None:
    fields = "--query-gpu=index,name,memory.total,memory.used"
    assert ask(job, fields, "--format=csv,noheader").stdout.splitlines() == [
        "0, NVIDIA H100 80GB HBM3, 81007 MiB, [N/A]",
        "1, NVIDIA H100 80GB HBM3, 81007 MiB, [N/A]",
    ]
    one = ask(job, "--query-gpu", "memory.total,compute_cap", "--format", "csv,nounits", "-i", "1")
    assert one.stdout.splitlines() == ["memory.total, compute_cap", "81007, 9.0"]
    assert ask(job, "-i", "7", "-L").returncode == 6


def test_clocks_that_benchmarks_ask_for(job: dict[str, str]) -> None:
    """`clocks.max.sm` is what roofline scripts divide by; the present clock is not known."""
    asked = "--query-gpu=clocks.max.sm,clocks.max.memory,clocks.sm,power.max_limit"
    assert ask(job, asked, "--format=csv", "-i", "0").stdout.splitlines() == [
        "clocks.max.sm [MHz], clocks.max.memory [MHz], clocks.sm [MHz], power.max_limit",
        "1980 MHz, 2619 MHz, [N/A], [N/A]",
    ]
    assert ask(job, "--query-gpu=clocks.max.sm", "--format=csv,noheader,nounits").stdout == "1980\n1980\n"


def test_what_it_does_not_know_is_an_error(job: dict[str, str]) -> None:
    for options in (["topo", "-m"], ["--query-gpu=colour", "--format=csv"], ["--query-gpu=name"]):
        done = ask(job, *options)
        assert done.returncode != 0
        assert (done.stdout + done.stderr).strip()
    assert "nvidia-smi topo -m" in ask(job, "topo", "-m").stderr
    assert ask(job).returncode == 0
