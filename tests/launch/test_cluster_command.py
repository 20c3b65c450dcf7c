"""`phantom cluster show` and `phantom cluster calibrate`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from netsim.cluster import load_cluster
from phantom.cli.cluster import cluster
from phantom.launch.errors import UsageError

ROW = "{size:>12} {count:>12} float sum -1 {time:8.2f} 0.1 0.1 0 {time:8.2f} 0.1 0.1 0\n"


def test_show_draws_and_gives_json(tmp_path: Path) -> None:
    drawing = tmp_path / "x.svg"
    shown = CliRunner().invoke(cluster, ["show", "h100-dgx", "--svg", str(drawing)], catch_exceptions=False)
    assert "gpu7" in shown.output
    assert drawing.read_text().startswith("<svg")
    data = json.loads(CliRunner().invoke(cluster, ["show", "h100-dgx", "--json"]).output)
    assert data["node"]["gpus"] == 8


def test_calibrate_writes_a_cluster_that_loads(tmp_path: Path) -> None:
    log, out = tmp_path / "all_reduce_perf.log", tmp_path / "mine.toml"
    sizes = [1 << e for e in range(10, 30)]
    log.write_text("".join(ROW.format(size=s, count=s // 4, time=60 + s / 180e3) for s in sizes))
    command = ["calibrate", "--base", "h100-dgx", "--ranks", "16", "--nodes", "2"]
    done = CliRunner().invoke(
        cluster, [*command, "--nccl-log", str(log), "--out", str(out)], catch_exceptions=False
    )
    assert "held out" in done.output
    assert load_cluster(out).name == "calibrated"
    with pytest.raises(UsageError, match="does not tell ranks"):
        CliRunner().invoke(
            cluster, ["calibrate", "--base", "h100-dgx", "--nccl-log", str(log)], catch_exceptions=False
        )
