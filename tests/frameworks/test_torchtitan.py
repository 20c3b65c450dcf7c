"""TorchTitan's own report, and sanity that a wrong simulator would fail."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from interpose import build
from phantom.timeline.recording import load

from .cases_torchtitan import titan
from .outcome import installed, run_case

pytestmark = [
    pytest.mark.skipif(not build.is_current(), reason="extension not built: python -m interpose.build"),
    pytest.mark.skipif(installed("torchtitan") == "-", reason="torchtitan is not installed"),
]
LINE = re.compile(
    r"step: +(\d+) .*memory: +([\d.]+)GiB\(([\d.]+)%\) +tps: ([\d,]+) +tflops: ([\d.,]+) +mfu: ([\d.]+)%"
)
GIB = 1 << 30
NIC = re.compile(r"nic|ib|network", re.IGNORECASE)


def simulate(folder: Path, *arguments: str, steps: int = 3, **settings: Any) -> Path:
    """Runs TorchTitan's llama3 debug model; returns the run's folder."""
    case = titan("test", "", *arguments, launcher="python", **settings)
    case = replace(case, command=[*case.command, "--training.steps", str(steps)], steps=steps)
    outcome = run_case(case, folder)
    assert outcome.status == "ok", outcome.output
    return folder / "run"


def summary_of(run: Path) -> dict[str, Any]:
    return json.loads((run / "summary.json").read_text())


def test_printed_lines_are_in_virtual_units(tmp_path: Path) -> None:
    run = simulate(
        tmp_path,
        "--metrics.log_freq",
        "1",
        "--metrics.disable_color_printing",
        "--training.local_batch_size",
        "16",
        "--training.seq_len",
        "1024",
        gpus=2,
        steps=5,
    )
    summary = summary_of(run)
    lines = [LINE.search(line) for line in (run / "ranks" / "0.log").read_text().splitlines()]
    found = {int(line[1]): line for line in lines if line}
    assert sorted(found) == [1, 2, 3, 4, 5]
    tokens = 16 * 1024  # per GPU and step
    for step in (2, 3, 4, 5):
        tps = float(found[step][4].replace(",", ""))
        expected = tokens / summary["steps"][step - 1]["virtual_s"]
        assert tps == pytest.approx(expected, rel=0.02), f"step {step}"
        # mfu is that of TorchTitan's FLOP formula at the H100's dense bf16 peak, as it knows it.
        tflops = float(found[step][5].replace(",", ""))
        assert float(found[step][6]) == pytest.approx(100 * tflops / 989, abs=0.01)
    reserved = summary["ranks"][0]["peak_reserved_bytes"]
    most = max(float(line[2]) for line in found.values())
    assert most == pytest.approx(reserved / GIB, abs=0.006)
    capacity = float(found[2][2]) / float(found[2][3]) * 100
    assert capacity == pytest.approx(79.1, rel=0.02), "the per cent are of the simulated GPU's memory"


def test_more_tensor_parallelism_lowers_memory(tmp_path: Path) -> None:
    peaks = []
    for degree in (1, 2, 4):
        run = simulate(
            tmp_path / str(degree),
            "--parallelism.tensor_parallel_degree",
            str(degree),
            "--parallelism.data_parallel_shard_degree",
            "1",
            "--parallelism.data_parallel_replicate_degree",
            "1",
            gpus=degree,
        )
        peaks.append(max(rank["peak_allocated_bytes"] for rank in summary_of(run)["ranks"]))
    assert peaks[0] > 1.3 * peaks[1] > 1.3 * 1.3 * peaks[2]


def gradient_traffic(run: Path, *, gpus_per_node: int) -> dict[str, int]:
    """Bytes of weight and gradient collectives by whether their group stays within a node."""
    totals = {"inside": 0, "between": 0}
    for each in load(run).collectives:
        if each.kind not in ("all_gather", "reduce_scatter", "all_reduce") or each.size_bytes < 1 << 16:
            continue
        nodes = {rank // gpus_per_node for rank in each.ranks}
        totals["inside" if len(nodes) == 1 else "between"] += each.size_bytes
    return totals


def test_hybrid_sharding_keeps_gathers_inside_the_node(tmp_path: Path) -> None:
    flat = simulate(tmp_path / "fsdp", nodes=2, gpus=2)
    hybrid = simulate(
        tmp_path / "hsdp",
        "--parallelism.data_parallel_replicate_degree",
        "2",
        "--parallelism.data_parallel_shard_degree",
        "2",
        nodes=2,
        gpus=2,
    )
    over_all, within = gradient_traffic(flat, gpus_per_node=2), gradient_traffic(hybrid, gpus_per_node=2)
    assert over_all["inside"] == 0
    assert within["inside"] > 0
    # What is left between the nodes is one all_reduce of each rank's half of the gradients.
    assert within["between"] < 0.35 * over_all["between"]
    # The network agrees: fewer bytes leave a node.
    leaving = [bytes_between_nodes(run) for run in (flat, hybrid)]
    assert 0 < leaving[1] < leaving[0]


def bytes_between_nodes(run: Path) -> float:
    """What all links that leave a node carried."""
    return sum(float(curve.bytes.sum()) for curve in load(run).links.links if NIC.search(curve.name))
