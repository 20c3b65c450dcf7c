"""TorchTitan's own report, and sanity that a wrong simulator would fail."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from interpose import build
from phantom.report.memory import peaks
from phantom.timeline.recording import load

from .cases_torchtitan import REPLICATE, SHARD, TENSOR, titan
from .outcome import installed, run_case

pytestmark = [
    pytest.mark.skipif(not build.is_current(), reason="extension not built: python -m interpose.build"),
    pytest.mark.skipif(installed("torchtitan") == "-", reason="torchtitan is not installed"),
]
LINE = re.compile(
    r"step: +(\d+) .*memory: +([\d.]+)GiB\(([\d.]+)%\) +tps: ([\d,]+) +tflops: ([\d.,]+) +mfu: ([\d.]+)%"
)
GIB = 1 << 30


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
    degrees = (1, 2, 4)
    allocated, states = [], []
    for degree in degrees:
        run = simulate(
            tmp_path / str(degree),
            TENSOR,
            str(degree),
            SHARD,
            "1",
            REPLICATE,
            "1",
            gpus=degree,
        )
        allocated.append(max(rank["peak_allocated_bytes"] for rank in summary_of(run)["ranks"]))
        by_category = peaks(load(run).ranks)[0].by_category
        states.append(by_category["parameters"] + by_category["optimizer state"])
    assert allocated[0] > allocated[1] > allocated[2]
    # All weights but those of the norms are divided among the ranks.
    for degree, state in zip(degrees, states, strict=True):
        assert state == pytest.approx(states[0] / degree, rel=0.02)


def bytes_by_reach(run: Path, kind: str, *, gpus_per_node: int) -> dict[str, int]:
    """Message bytes of a kind of collective by whether its group stays inside a node; small ones left out."""
    totals = {"inside": 0, "between": 0}
    for each in load(run).collectives:
        if each.kind == kind and each.size_bytes >= 1 << 16:
            nodes = {rank // gpus_per_node for rank in each.ranks}
            totals["inside" if len(nodes) == 1 else "between"] += each.size_bytes
    return totals


def bytes_leaving_nodes(run: Path) -> float:
    """What the cables from the nodes' NICs to the switches carried."""
    return sum(
        float(link.bytes.sum())
        for link in load(run).links.links
        if re.fullmatch(r"node\d+/nic\d+->leaf.*", link.name)
    )


def test_hybrid_sharding_keeps_gathers_inside_the_node(tmp_path: Path) -> None:
    flat_run = simulate(tmp_path / "fsdp", nodes=2, gpus=2)
    hybrid_run = simulate(tmp_path / "hsdp", REPLICATE, "2", SHARD, "2", nodes=2, gpus=2)
    kinds = ("all_gather", "reduce_scatter", "all_reduce")
    flat = {kind: bytes_by_reach(flat_run, kind, gpus_per_node=2) for kind in kinds}
    hybrid = {kind: bytes_by_reach(hybrid_run, kind, gpus_per_node=2) for kind in kinds}
    # FSDP: one group over all ranks. HSDP: the same messages in each node, none of them between nodes.
    for kind in ("all_gather", "reduce_scatter"):
        assert flat[kind]["inside"] == hybrid[kind]["between"] == 0
        assert hybrid[kind]["inside"] == 2 * flat[kind]["between"] > 0
    # What is left between the nodes: each rank's half of the gradients, summed with its peer's.
    assert flat["all_reduce"] == {"inside": 0, "between": 0}
    assert hybrid["all_reduce"] == {"inside": 0, "between": hybrid["reduce_scatter"]["inside"] // 2}
    # A ring over 4 ranks in 2 nodes crosses each way with 3/4 of its bytes, an all_reduce of 2 with all.
    crossing = 0.75 * (flat["all_gather"]["between"] + flat["reduce_scatter"]["between"])
    expected = hybrid["all_reduce"]["between"] / crossing
    assert expected < 0.75
    assert bytes_leaving_nodes(hybrid_run) / bytes_leaving_nodes(flat_run) == pytest.approx(
        expected, rel=0.03
    )
