"""Exports to PyTorch's memory viewer and profiler format, and the commands that write them."""

from __future__ import annotations

import gzip
import json
import pickle
from pathlib import Path

import pytest
from click.testing import CliRunner

from phantom.cli.main import cli
from phantom.export.kineto import write_kineto
from phantom.export.memory_snapshot import write_snapshot
from phantom.launch.errors import UsageError
from phantom.timeline.recording import load
from report.synthetic import LAYERS, write_run


def test_pytorchs_own_viewer_reads_the_snapshot(tmp_path: Path) -> None:
    from torch.cuda import _memory_viz

    states, _ = write_run(tmp_path, ranks=1, steps=2)
    path = write_snapshot(load(tmp_path).ranks[0], tmp_path / "snapshot.pickle")
    data = pickle.loads(path.read_bytes())
    assert "64.0MiB" in _memory_viz.segsum(data)
    assert "segment" not in _memory_viz.trace(data).splitlines()[0]
    page = _memory_viz.trace_plot(data)
    assert "memory_viz" in page.lower() or "MemoryViz" in page
    trace = data["device_traces"][0]
    balance = sum(e["size"] * {"alloc": 1, "free_completed": -1}.get(e["action"], 0) for e in trace)
    assert balance == states[0].allocated
    assert sum(segment["total_size"] for segment in data["segments"]) == states[0].allocated
    named = {event["frames"][0]["name"] for event in trace}
    assert named == {"parameters", "activations"}


def test_profiler_traces_hold_every_kernel(tmp_path: Path) -> None:
    states, _ = write_run(tmp_path, ranks=2, steps=2)
    paths = write_kineto(load(tmp_path), tmp_path / "kineto")
    assert [path.name for path in paths] == ["rank-0.json.gz", "rank-1.json.gz"]
    trace = json.loads(gzip.decompress(paths[1].read_bytes()))
    assert trace["distributedInfo"] == {"backend": "nccl", "rank": 1, "world_size": 2}
    kernels = [event for event in trace["traceEvents"] if event["cat"] == "kernel"]
    assert len(kernels) == len(states[1].spans)
    launches = {e["args"]["correlation"] for e in trace["traceEvents"] if e["cat"] == "cuda_runtime"}
    assert {kernel["args"]["correlation"] for kernel in kernels} == launches
    assert (
        sum(kernel["name"].startswith("ncclDevKernel_AllReduce_Sum_RING_SIMPLE") for kernel in kernels) == 6
    )
    compute_us = sum(kernel["dur"] for kernel in kernels if not kernel["name"].startswith("nccl"))
    assert compute_us == pytest.approx(2 * sum(layer.kernel_us for layer in LAYERS))


def test_the_commands(tmp_path: Path) -> None:
    run = tmp_path / "run"
    write_run(run, ranks=2, steps=3)
    ask = CliRunner().invoke
    out = ask(cli, ["report", str(run)], catch_exceptions=False).output
    assert "step time, median" in out
    assert json.loads(ask(cli, ["report", str(run), "--json"]).output)["schema"] == 1
    page = ask(cli, ["report", str(run), "--html"], catch_exceptions=False).output.strip()
    assert Path(page).stat().st_size > 20_000
    assert "parameters" in ask(cli, ["report", str(run), "--memory"], catch_exceptions=False).output
    options = ["--chakra", str(tmp_path / "t"), "--timeline", str(tmp_path / "x.pftrace"), "--steps", "1:3"]
    options += [
        "--memory-snapshot",
        str(tmp_path / "m.pickle"),
        "--kineto",
        str(tmp_path / "k"),
        "--rank",
        "1",
    ]
    written = ask(cli, ["export", str(run), *options], catch_exceptions=False).output.split()
    assert len(written) == 3 + 1 + 2 + 1
    assert all(Path(path).stat().st_size > 10 for path in written)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["report", "RUN/none"], "no such folder"),
        (["export", "RUN"], "nothing to export"),
        (["export", "RUN", "--chakra", "RUN/x", "--steps", "7:9"], "none of these steps"),
        (["export", "RUN", "--timeline", "RUN/x", "--ranks", "5"], "outside the job's ranks 0 to 1"),
        (["export", "RUN", "--memory-snapshot", "RUN/x", "--rank", "9"], "rank 9 was not recorded"),
    ],
)
def test_wrong_requests_name_the_fault(tmp_path: Path, arguments: list[str], text: str) -> None:
    write_run(tmp_path / "run", ranks=2, steps=1)
    given = [argument.replace("RUN", str(tmp_path / "run")) for argument in arguments]
    result = CliRunner().invoke(cli, given)
    assert isinstance(result.exception, UsageError)
    assert text in str(result.exception)
