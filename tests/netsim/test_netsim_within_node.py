"""Times inside a node: the formula, the shipped constants, errors on configurations left out of the fit."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from netsim.accuracy import main
from netsim.calibrate.measurements import Measurement
from netsim.calibrate.within_node import (
    fit_set,
    held_out_errors,
    predict_rows,
    row_of,
    rows_by_set,
    within_node_rows,
)
from netsim.cluster import load_cluster
from netsim.cluster.within_node import within_node_set, within_node_sets
from netsim.fabric.topology import Topology
from netsim.nccl.collectives import Planner
from netsim.operation import Operation


def planner(preset: str, gpus: int) -> Planner:
    return Planner(Topology(load_cluster(preset), nodes=1, gpus_per_node=gpus), {}, seed=0)


@pytest.mark.parametrize("preset", ["a100-dgx", "h100-dgx", "b200-dgx", "rtx-pro-6000-box"])
@pytest.mark.parametrize("kind", ["all_reduce", "all_gather", "reduce_scatter", "all_to_all"])
def test_an_operation_alone_takes_the_calibrated_time(preset: str, kind: str) -> None:
    cluster = load_cluster(preset)
    plans = planner(preset, 4)
    for size in (512, 1 << 16, 1 << 20, 1 << 24, 1 << 29):
        op = Operation(kind=kind, ranks=(0, 1, 2, 3), size_bytes=size, dtype="float16")
        m = Measurement(
            source="t", kind=kind, ranks=4, nodes=1, size_bytes=size, time_us=1.0, dtype="float16"
        )
        row = row_of(cluster, plans, m)
        (expected,) = predict_rows([row], cluster.nccl.within_node)
        assert plans.choice(op).estimate_s * 1e6 == pytest.approx(expected, rel=1e-3)


def test_times_grow_with_the_size() -> None:
    plans = planner("h200-dgx", 8)
    ranks = tuple(range(8))
    for kind in ("all_to_all", "broadcast"):
        times = [
            plans.choice(Operation(kind=kind, ranks=ranks, size_bytes=1 << e, root=0)).estimate_s
            for e in range(9, 31)
        ]
        assert times == sorted(times)


def test_an_uneven_exchange_with_even_counts_is_the_even_one() -> None:
    plans = planner("h100-dgx", 4)
    piece = 1 << 22
    counts = tuple(tuple(piece for _ in range(4)) for _ in range(4))
    even = Operation(kind="all_to_all", ranks=(0, 1, 2, 3), size_bytes=4 * piece)
    uneven = replace(even, send_counts=counts)
    assert plans.choice(uneven).estimate_s == pytest.approx(plans.choice(even).estimate_s, rel=1e-3)


def test_the_switch_does_not_add_up_bytes() -> None:
    plans = planner("h100-dgx", 8)
    ranks = tuple(range(8))
    half = Operation(kind="all_reduce", ranks=ranks, size_bytes=1 << 28, dtype="bfloat16")
    assert plans.pick(half).algorithm == "nvls"
    assert plans.pick(replace(half, dtype="int8")).algorithm == "ring"


def test_configurations_left_out_of_the_fit() -> None:
    rows = rows_by_set([m for m in within_node_rows() if m.source.startswith("a100")])["ampere-nvlink"]
    held = held_out_errors(rows)
    assert len(held) > 250
    small = [abs(e) for r, e in held if r.measurement.size_bytes < 1 << 16]
    large = [abs(e) for r, e in held if r.measurement.size_bytes >= 1 << 16]
    assert np.median(small) <= 0.15
    assert np.median(large) <= 0.08
    assert np.quantile(large, 0.9) <= 0.20


def test_shipped_constants_are_the_fit() -> None:
    rows = rows_by_set([m for m in within_node_rows() if m.source.startswith("l40s")])["ada-pcie"]
    fitted, shipped = fit_set(rows), within_node_sets()["ada-pcie"]
    for key, timing in fitted.items():
        assert shipped[key].base_us == pytest.approx(timing.base_us, rel=0.01)
        assert shipped[key].efficiency == pytest.approx(timing.efficiency, rel=0.01)


def test_a_generation_without_measurements_keeps_its_own_timing() -> None:
    v100 = load_cluster("v100-dgx")
    assert within_node_set(v100.gpu, v100.node) == ""
    assert v100.nccl.within_node == {}


def test_unseen_tables_are_judged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "aic_nccl.csv").write_text(
        "system,nccl,op_name,nccl_dtype,num_gpus,message_size,size_bytes,time_us,busbw_gbps\n"
        "h100_sxm,2.27.3,all_gather,half,8,524288,1048576,17.4,0\n"
        "h100_sxm,2.27.3,all_gather,half,8,256,512,20.8,0\n"
    )
    monkeypatch.setattr("sys.argv", ["accuracy", "--data", str(tmp_path), "--json"])
    main()
    middle, small = json.loads(capsys.readouterr().out)
    assert set(small) == {"table", "gpu", "class", "rows", "median", "p90", "worst", "bias"}
    assert (small["gpu"], small["rows"], middle["class"]) == ("h100_sxm", 1, "all_gather 64 KiB to 4 MiB")
    assert middle["median"] < 15
    assert -60 < small["bias"] < -40  # the row's time was doubled
