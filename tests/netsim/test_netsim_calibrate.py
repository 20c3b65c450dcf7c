"""Reading nccl-tests output and fitting a cluster to it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from netsim.calibrate.fit import errors, fit, predict_us
from netsim.calibrate.measurements import Measurement, a100_all_reduce, parse_nccl_tests
from netsim.calibrate.report import calibrate_files, main
from netsim.cluster import load_cluster
from netsim.cluster.spec import ClusterSpec
from netsim.errors import ClusterError

# The layout of nccl-tests 2.13: device lines, then out-of-place and in-place columns.
HEADER = """\
# nThread 1 nGpus 1 minBytes 8 maxBytes 1073741824 step: 2(factor) warmup iters: 5 iters: 20 agg iters: 1
# validation: 1
#
# Using devices
{devices}
#
#                                                              out-of-place                       in-place
# size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw
# #wrong        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)
# (GB/s)
"""
DEVICE = "#  Rank {r:2d} Group  0 Pid {pid} on {host} device {d} [0x07] NVIDIA H100 80GB HBM3"


def log(rows: list[tuple[int, float]], *, nodes: int = 2, one_process: bool = False) -> str:
    devices = "\n".join(
        DEVICE.format(r=r, pid=100 if one_process else 100 + r, host=f"host{r // 8}", d=r % 8)
        for r in range(nodes * 8)
    )
    lines = [
        f"{size:12d} {size // 4:13d}     float     sum      -1 {time:8.2f} {size / time / 1e3:7.2f}"
        f"    0.10      0 {time * 0.98:8.2f} {size / time / 1e3:7.2f}    0.10      0"
        for size, time in rows
    ]
    return (
        HEADER.format(devices=devices)
        + "\n".join(lines)
        + "\n# Out of bounds values : 0 OK\n# Avg bus bandwidth : 1\n"
    )


def test_layouts_of_nccl_tests() -> None:
    rows = parse_nccl_tests(log([(1024, 30.5), (1 << 20, 99.25)]), file="all_reduce.log")
    assert [(m.size_bytes, m.time_us, m.ranks, m.nodes, m.gpus_per_process, m.kind) for m in rows] == [
        (1024, 30.5, 16, 2, 1, "all_reduce"),
        (1 << 20, 99.25, 16, 2, 1, "all_reduce"),
    ]
    (row,) = parse_nccl_tests(log([(1024, 30.5)], nodes=1, one_process=True), file="all_reduce.log")
    assert (row.gpus_per_process, row.nodes) == (8, 1)
    # all_gather has no operator but a root column, older releases neither; #wrong may be missing or N/A.
    for line in (
        "  1024   64  float   none   -1   21.5   0.05  0.04    0   20.9  0.05  0.04    0",
        "  1024   64  float   21.5   0.05  0.04  0e+00   20.9  0.05  0.04  0e+00",
        "  1024   64  float   -1   21.5   0.05  0.04  N/A   20.9  0.05  0.04  N/A",
    ):
        (row,) = parse_nccl_tests(line, file="all_gather_perf.txt", nodes=1, ranks=4)
        assert (row.time_us, row.kind) == (21.5, "all_gather")


def test_logs_that_do_not_tell_enough() -> None:
    line = "  1024   256  float   sum   -1   21.5   0.05  0.04    0   20.9  0.05  0.04    0\n"
    with pytest.raises(ClusterError, match=r"x.log: the output does not tell kind"):
        parse_nccl_tests(line, file="x.log", ranks=8, nodes=1)
    with pytest.raises(ClusterError, match=r"x.log: the output does not tell ranks"):
        parse_nccl_tests(line, file="x.log", kind="all_reduce")
    with pytest.raises(ClusterError, match=r"x.log: no nccl-tests result lines"):
        parse_nccl_tests("nothing here", file="x.log", kind="all_reduce", ranks=8, nodes=1)


def hidden() -> ClusterSpec:
    """The preset with other parameters than it has: what a fit has to find."""
    spec = load_cluster("h100-dgx")
    timing = {
        key: replace(t, base_us=t.base_us * 1.5, inter_us=t.inter_us * 2, efficiency=t.efficiency * 0.9)
        for key, t in spec.nccl.timing.items()
    }
    return replace(spec, nccl=replace(spec.nccl, timing=timing, channel_us=4.0))


def test_a_fit_recovers_hidden_parameters_and_predicts_other_sizes_and_worlds() -> None:
    truth, start = hidden(), load_cluster("h100-dgx")
    rows = [
        Measurement(source="t", kind="all_reduce", ranks=r, nodes=r // 8, size_bytes=1 << e, time_us=1.0)
        for r in (8, 16, 32)
        for e in range(10, 33)
    ]
    rows = [replace(m, time_us=float(t)) for m, t in zip(rows, predict_us(truth, rows))]
    seen = [m for m in rows if m.ranks != 32 and m.size_bytes.bit_length() % 2]
    unseen = [m for m in rows if m not in seen]
    result = fit(start, seen, prior=dict(start.nccl.timing))
    assert np.median(np.abs(errors(start, unseen))) > 0.08
    assert np.median(np.abs(errors(result.cluster, unseen))) < 0.04
    assert np.max(np.abs(errors(result.cluster, seen))) < 0.08


def test_outliers_do_not_pull_the_fit() -> None:
    rows = [m for m in a100_all_reduce() if m.ranks in (16, 32)]
    start = load_cluster("a100-azure-nd")
    clean = fit(start, rows).cluster
    spoiled = [replace(m, time_us=m.time_us * 5) if i in (3, 30) else m for i, m in enumerate(rows)]
    dirty = fit(start, spoiled).cluster
    assert np.median(np.abs(predict_us(dirty, rows) / predict_us(clean, rows) - 1)) < 0.03


def test_command_writes_a_cluster_file_that_loads(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sizes = [1 << e for e in range(10, 31)]
    rows = [
        Measurement(source="t", kind="all_reduce", ranks=16, nodes=2, size_bytes=s, time_us=1.0)
        for s in sizes
    ]
    times = predict_us(hidden(), rows).tolist()
    path = tmp_path / "all_reduce.log"
    path.write_text(log(list(zip(sizes, times))))
    out = tmp_path / "mine.toml"
    assert main(["--base", "h100-dgx", "--nccl-log", str(path), "--out", str(out)]) == 0
    printed = capsys.readouterr().out
    assert "held out" in printed
    fitted = load_cluster(out)
    measured = parse_nccl_tests(path.read_text(), file=str(path))
    assert np.median(np.abs(errors(fitted, measured))) < 0.02
    found = calibrate_files("h100-dgx", [str(path)])
    assert np.median(np.abs(found.held_out)) < 0.1
    assert main(["--base", "h100-dgx", "--nccl-log", str(tmp_path / "none.log")]) == 2
    assert "none.log: cannot be read" in capsys.readouterr().err
