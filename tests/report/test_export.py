"""Exports to PyTorch's memory viewer and profiler format, and the commands that write them."""

from __future__ import annotations

import gzip
import json
import pickle
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgpack
import pytest
from click.testing import CliRunner

from phantom.cli.main import cli
from phantom.export.kineto import write_kineto
from phantom.export.memory_snapshot import write_snapshot
from phantom.launch.errors import UsageError
from phantom.report.finish import finish
from phantom.timeline.collectives import CollectiveLog, read_all
from phantom.timeline.links import LinkRecord
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
        (["report", "RUN/summary.json"], "it is not a folder"),
        (["report", "RUN", "--json", "--html"], "give one of --json, --html and --memory"),
        (["export", "RUN"], "nothing to export"),
        (["export", "RUN", "--chakra", "RUN/x", "--steps", "7:9"], "none of these steps"),
        (
            ["export", "RUN", "--chakra", "RUN/x", "--steps", "7:9"],
            "recorded: steps 0 to 0 of 2 ranks",
        ),
        (["export", "RUN", "--timeline", "RUN/x", "--steps", "x"], "--steps: 'x' is not a range"),
        (["export", "RUN", "--timeline", "RUN/none/x"], "cannot write"),
        (["export", "RUN", "--timeline", "/dev/full"], "cannot write"),
        (["export", "RUN", "--kineto", "/dev/null/x"], "cannot write"),
        (["export", "RUN", "--timeline", "RUN/x", "--ranks", "5"], "outside the job's ranks 0 to 1"),
        (["export", "RUN", "--memory-snapshot", "RUN/x", "--rank", "9"], "rank 9 of --rank was not recorded"),
    ],
)
def test_wrong_requests_name_the_fault(tmp_path: Path, arguments: list[str], text: str) -> None:
    write_run(tmp_path / "run", ranks=2, steps=1)
    given = [argument.replace("RUN", str(tmp_path / "run")) for argument in arguments]
    result = CliRunner().invoke(cli, given)
    assert isinstance(result.exception, UsageError)
    assert text in str(result.exception)


@pytest.mark.parametrize(
    ("file", "content", "text"),
    [
        ("summary.json", b'{"schema": 1,', "summary.json is not JSON"),
        ("summary.json", b"\xff\xfe", "summary.json is not UTF-8"),
        ("summary.json", b"[]", "it has no field schema"),
        ("summary.json", b"{}", "it has no field schema"),
        ("summary.json", b'{"schema": 99}', "field schema is 99, this phantom reads 1; use the version"),
        ("spool/collectives.msgpack", b"\x01\x02", "collectives.msgpack is damaged"),
        ("spool/collectives.msgpack", msgpack.packb(["collective", 1, 2]), "collectives.msgpack is damaged"),
        ("spool/collectives.msgpack", msgpack.packb(["header", {"version": 9}]), "this program reads 1"),
        ("spool/rank-1.msgpack", b"\x01\x02", "rank-1.msgpack is damaged"),
    ],
)
def test_damage_is_told_with_the_file_and_a_remedy(
    tmp_path: Path, file: str, content: bytes, text: str
) -> None:
    run = tmp_path / "run"
    write_run(run, ranks=2, steps=1)
    (run / file).write_bytes(content)
    for arguments in (["report", str(run), "--html"], ["export", str(run), "--timeline", str(run / "x")]):
        result = CliRunner().invoke(cli, arguments)
        assert isinstance(result.exception, UsageError), result.exception
        assert text in str(result.exception)
        assert str(run / file) in str(result.exception)


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("rank-1.msgpack", "the record of rank 1 ends early"),
        ("collectives.msgpack", "the record of collectives and links is not complete"),
    ],
)
def test_a_record_that_ends_early_is_shown_and_said(tmp_path: Path, file: str, text: str) -> None:
    run = tmp_path / "run"
    write_run(run, ranks=2, steps=2)
    assert load(run).gaps == ()
    path = run / "spool" / file
    path.write_bytes(path.read_bytes()[:-20])
    for arguments in (["report", str(run), "--html"], ["export", str(run), "--timeline", str(run / "x")]):
        result = CliRunner().invoke(cli, arguments, catch_exceptions=False)
        assert result.exit_code == 0
        assert text in result.output
    assert text in (run / "report.html").read_text()
    (run / "spool" / "collectives.msgpack").unlink()
    assert "collectives and links is not complete" in load(run).gaps[-1]


@contextmanager
def full_disk(size_bytes: int) -> Iterator[None]:
    """No file of this process may become larger."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk_costs_timeline_and_page_but_not_the_result(tmp_path: Path) -> None:
    write_run(tmp_path, ranks=2, steps=3)
    before = json.loads((tmp_path / "summary.json").read_text())
    with full_disk(8192):
        summary = finish(tmp_path, timeline=True)
        result = CliRunner().invoke(cli, ["export", str(tmp_path), "--timeline", str(tmp_path / "x")])
    first, second = summary.warnings[-2:]
    assert first.startswith(f"no timeline: cannot write {tmp_path / 'timeline.pftrace'}: File too large")
    assert second.startswith(f"no report: cannot write {tmp_path / 'report.html'}: File too large")
    assert f"cannot write {tmp_path / 'x'}: File too large" in str(result.exception)
    assert json.loads((tmp_path / "summary.json").read_text())["steps"] == before["steps"]
    with full_disk(100):
        summary = finish(tmp_path, timeline=False)
    assert "it could not be written again: File too large" in summary.warnings[-1]
    assert json.loads((tmp_path / "summary.json").read_text())["steps"] == before["steps"]
    assert not list(tmp_path.glob("*.part"))


def test_a_full_disk_ends_the_record_of_collectives_and_nothing_else(tmp_path: Path) -> None:
    write_run(tmp_path / "run", ranks=2, steps=3)
    collectives = load(tmp_path / "run").collectives
    with full_disk(4096):
        log = CollectiveLog(tmp_path / "spool" / "collectives.msgpack")
        for _ in range(40):
            for each in collectives:
                log.add(each)
        log.links(LinkRecord())
        log.close()
    assert log.trouble is not None
    assert "File too large" in log.trouble
    found = read_all(tmp_path / "spool" / "collectives.msgpack")
    assert not found.whole
    assert 0 < len(found.collectives) < 40 * len(collectives)
