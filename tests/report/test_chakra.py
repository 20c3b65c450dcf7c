"""Chakra traces: well formed, matched, and a replay by ASTRA-sim's rules takes as long as the run did."""

from __future__ import annotations

import json
import os
import re
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phantom.export.chakra import execution_trace_pb2 as pb
from phantom.export.chakra.check import check
from phantom.export.chakra.export import ExportError, export_chakra
from phantom.export.chakra.nodes import TraceFile, node, read_file, values_of
from phantom.timeline.collectives import Collective
from phantom.timeline.recording import Recording, load
from report.synthetic import Layer, write_run

LAYER = st.builds(
    Layer,
    host_us=st.integers(0, 60),
    kernel=st.integers(0, 2),
    kernel_us=st.integers(0, 80),
    collective_bytes=st.sampled_from([0, 0, 100_000, 800_000]),
    wait=st.booleans(),
)


def replay(paths: list[Path], groups: Path) -> dict[int, int]:
    """Time in us at which each rank ends, by dependencies and durations alone (`replay-only`)."""
    ends: list[dict[int, int]] = [{} for _ in paths]
    ready: dict[tuple[Any, ...], dict[int, int]] = {}
    traces = [read_file(path)[1] for path in paths]
    members = json.loads(groups.read_text())
    seen: list[dict[str, int]] = [{} for _ in paths]
    queues = [list(trace) for trace in traces]
    names: dict[tuple[int, int], tuple[Any, ...]] = {}
    while any(queues):
        progress = False
        for rank, queue in enumerate(queues):
            later = []
            for made in queue:
                if any(dep not in ends[rank] for dep in made.data_deps):
                    later.append(made)
                    continue
                at = max((ends[rank][dep] for dep in made.data_deps), default=0)
                if made.type == pb.COMM_COLL_NODE:
                    name = values_of(made)["pg_name"]
                    if (rank, made.id) not in names:
                        names[rank, made.id] = (name, seen[rank].get(name, 0))
                        seen[rank][name] = seen[rank].get(name, 0) + 1
                    arrived = ready.setdefault(names[rank, made.id], {})
                    progress |= rank not in arrived
                    arrived[rank] = at
                    if len(arrived) < len(members[name]):
                        later.append(made)
                        continue
                    at = max(arrived.values())
                ends[rank][made.id] = at + made.duration_micros
                progress = True
            queues[rank] = later
        assert progress, "the trace deadlocks"
    return {rank: max(found.values()) for rank, found in enumerate(ends)}


@settings(max_examples=30, deadline=None)
@given(layers=st.lists(LAYER, min_size=1, max_size=8), ranks=st.integers(1, 4), skew=st.integers(0, 30))
def test_replay_takes_as_long_as_the_run(layers: list[Layer], ranks: int, skew: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        write_run(Path(folder) / "run", ranks=ranks, steps=2, layers=layers, skew_us=skew)
        recording = load(Path(folder) / "run")
        *paths, groups = export_chakra(recording, Path(folder) / "trace")
        assert check(paths) == []
        ends = replay(paths, groups)
    begin = min(spool.steps[0].begin_ps for spool in recording.ranks.values())
    for rank, spool in recording.ranks.items():
        last = max((int(end) for end in spool.spans["end_ps"]), default=begin)
        # Every piece is rounded to whole microseconds, so the chain may be off by one per collective.
        assert abs(ends[rank] - (last - begin) / 1e6) <= 2 + len(recording.collectives)


def test_nodes_say_what_astra_sim_reads(tmp_path: Path) -> None:
    write_run(tmp_path / "run", ranks=4, steps=1)
    *paths, groups = export_chakra(load(tmp_path / "run"), tmp_path / "out" / "trace")
    assert [path.name for path in paths] == [f"trace.{rank}.et" for rank in range(4)]
    assert groups.read_text() == '{"1": [0, 1, 2, 3]}\n'
    metadata, nodes = read_file(paths[2])
    assert metadata.version == "1.0.0"
    # ASTRA-sim's statistics abort on METADATA nodes; it takes the groups from the JSON file.
    assert all(made.type != pb.METADATA_NODE for made in nodes)
    collectives = [made for made in nodes if made.type == pb.COMM_COLL_NODE]
    assert [values_of(made)["comm_size"] for made in collectives] == [4_000_000, 1_000_000, 500_000]
    assert all(values_of(made)["comm_type"] == pb.ALL_REDUCE for made in collectives)
    # Its statistics throw where a node is a CPU's.
    assert not any(values_of(made)["is_cpu_op"] for made in nodes)
    host = [made for made in nodes if values_of(made).get("class") == "host"]
    assert host
    assert all(made.type == pb.COMP_NODE for made in host)


def _with(recording: Recording, change: Callable[[Collective], Collective]) -> Recording:
    collectives = [change(c) for c in recording.collectives]
    return Recording(recording.folder, recording.summary, recording.ranks, recording.groups, collectives)


@pytest.mark.parametrize(
    ("kind", "more", "sends", "sizes"),
    [
        ("gather", {"root": 1}, 3, {1_000_000}),
        ("scatter", {"root": 0}, 3, {1_000_000}),
        (
            "all_to_all",
            {"send_counts": ((0, 5, 0, 0), (7, 0, 0, 0), (0, 0, 0, 0), (0, 0, 1, 0))},
            3,
            {5, 7, 1},
        ),
    ],
)
def test_what_astra_sim_cannot_do_becomes_messages(
    tmp_path: Path, kind: str, more: dict[str, Any], sends: int, sizes: set[int]
) -> None:
    from dataclasses import replace

    write_run(tmp_path / "run", ranks=4, steps=1, layers=[Layer(5, 0, 20, collective_bytes=4_000_000)])
    recording = _with(load(tmp_path / "run"), lambda c: replace(c, kind=kind, **more))
    *paths, _ = export_chakra(recording, tmp_path / "trace")
    assert check(paths) == []
    sent = [m for path in paths for m in read_file(path)[1] if m.type == pb.COMM_SEND_NODE]
    assert len(sent) == sends
    assert {values_of(made)["comm_size"] for made in sent} == sizes


def test_all_gather_tells_the_input(tmp_path: Path) -> None:
    from dataclasses import replace

    write_run(tmp_path / "run", ranks=4, steps=1, layers=[Layer(5, 0, 20, collective_bytes=4_000_000)])
    recording = _with(load(tmp_path / "run"), lambda c: replace(c, kind="all_gather"))
    *paths, _ = export_chakra(recording, tmp_path / "trace")
    (made,) = [m for m in read_file(paths[0])[1] if m.type == pb.COMM_COLL_NODE]
    assert (values_of(made)["comm_type"], values_of(made)["comm_size"]) == (pb.ALL_GATHER, 1_000_000)


def test_the_check_finds_faults(tmp_path: Path) -> None:
    with TraceFile(tmp_path / "t.0.et") as file:
        made = node(5, "x", pb.COMP_NODE, deps=[4], start_ps=0, duration_us=1, attributes={})
        file.write(made)
        file.write(made)
        lonely = {"comm_dst": 1, "comm_size": 4, "comm_tag": 9}
        file.write(node(6, "s", pb.COMM_SEND_NODE, deps=[], start_ps=0, duration_us=1, attributes=lonely))
        file.write(node(7, "c", pb.COMM_COLL_NODE, deps=[], start_ps=0, duration_us=1,
                        attributes={"comm_type": 0, "comm_size": 1, "pg_name": "1"}))  # fmt: skip
    with TraceFile(tmp_path / "t.1.et") as file:
        file.write(node(7, "c", pb.COMM_COLL_NODE, deps=[], start_ps=0, duration_us=1,
                        attributes={"comm_type": 2, "comm_size": 1, "pg_name": "1"}))  # fmt: skip
        file.write(node(8, "m", pb.METADATA_NODE, deps=[], start_ps=0, duration_us=0, attributes={}))
    wrong = " ".join(check([tmp_path / "t.0.et", tmp_path / "t.1.et"]))
    for text in ("node 5 twice", "depends on [4]", "one side only", "collectives differ", "METADATA"):
        assert text in wrong


def test_a_run_without_all_ranks_is_refused(tmp_path: Path) -> None:
    write_run(tmp_path, ranks=3, steps=1)
    (tmp_path / "spool" / "rank-1.msgpack").unlink()
    with pytest.raises(ExportError, match="1 of 3 ranks"):
        export_chakra(load(tmp_path), tmp_path / "trace")


def test_a_message_that_one_side_awaited_before_the_step_has_both_sides(tmp_path: Path) -> None:
    from dataclasses import replace

    layers = [Layer(5, 0, 200, collective_bytes=1_000_000, wait=True), Layer(1, 0, 5)]
    write_run(tmp_path / "run", ranks=2, steps=3, layers=layers, skew_us=300)
    recording = _with(load(tmp_path / "run"), lambda c: replace(c, kind="send_recv"))
    for steps in ((0, 1), (1, 2), (1, 3), (2, 3)):
        *paths, _ = export_chakra(recording, tmp_path / "trace", steps=steps)
        assert check(paths) == []
        sent = [m for path in paths for m in read_file(path)[1] if m.type == pb.COMM_SEND_NODE]
        assert len(sent) == steps[1] - steps[0]


@pytest.mark.skipif("ASTRA_SIM" not in os.environ, reason="ASTRA_SIM names no AstraSim_Analytical_* program")
@pytest.mark.parametrize("replay_only", [True, False])
@pytest.mark.parametrize("kind", ["all_reduce", "all_gather", "reduce_scatter", "broadcast", "send_recv"])
def test_astra_sim_takes_as_long_as_the_run(tmp_path: Path, kind: str, replay_only: bool) -> None:
    from dataclasses import replace

    ranks = 2 if kind == "send_recv" else 4
    # Its replay takes durations as they are: a rank does not wait for the others. So no rank is late here.
    write_run(tmp_path / "run", ranks=ranks, steps=2, bytes_per_us=400_000, skew_us=0)
    recording = _with(load(tmp_path / "run"), lambda c: replace(c, kind=kind))
    *_, groups = export_chakra(recording, tmp_path / "trace")
    native = {f"{name}-implementation": ["ring"] for name in ("all-reduce", "all-gather", "reduce-scatter")}
    system = {"scheduling-policy": "LIFO", "endpoint-delay": 10, "active-chunks-per-dimension": 1,
              "preferred-dataset-splits": 1, **native, "all-to-all-implementation": ["ring"],
              "collective-optimization": "localBWAware", "local-mem-bw": 3350, "boost-mode": 0,
              "replay-only": int(replay_only)}  # fmt: skip
    (tmp_path / "system.json").write_text(json.dumps(system))
    (tmp_path / "memory.json").write_text('{"memory-type": "NO_MEMORY_EXPANSION"}')
    network = f"topology: [ Switch ]\nnpus_count: [ {ranks} ]\nbandwidth: [ 400.0 ]\nlatency: [ 900.0 ]\n"
    (tmp_path / "network.yml").write_text(network)
    done = subprocess.run(
        [os.environ["ASTRA_SIM"],
         f"--workload-configuration={tmp_path / 'trace'}", f"--comm-group-configuration={groups}",
         f"--system-configuration={tmp_path / 'system.json'}",
         f"--remote-memory-configuration={tmp_path / 'memory.json'}",
         f"--network-configuration={tmp_path / 'network.yml'}"],
        cwd=tmp_path, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    cycles = {int(r): int(c) for r, c in re.findall(r"sys\[(\d+)\] finished, (\d+) cycles", done.stdout)}
    begin = min(spool.steps[0].begin_ps for spool in recording.ranks.values())
    assert sorted(cycles) == list(range(ranks))
    for rank, spool in recording.ranks.items():
        took_us = (max(int(end) for end in spool.spans["end_ps"]) - begin) / 1e6
        # Its own network is another one: messages take other times.
        assert cycles[rank] / 1e3 == pytest.approx(took_us, rel=0.02 if replay_only else 0.25)
