"""The Perfetto timeline: parsed back with Perfetto's own schema, its sums are those of summary.json."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from phantom.report.links import by_kind, link_shares
from phantom.timeline.recording import load
from phantom.timeline.settings import parse_ranks, parse_steps
from phantom.timeline.write import write_timeline
from report.synthetic import write_run


def parse(path: Path) -> Any:
    trace_pb2 = pytest.importorskip(
        "perfetto.protos.perfetto.trace.perfetto_trace_pb2", reason="PyPI perfetto is not installed"
    )
    trace = trace_pb2.Trace()
    trace.ParseFromString(path.read_bytes())
    return trace


class Slices:
    """Slices of a parsed trace: (process name, thread name, slice name, begin ns, end ns, depth, event)."""

    def __init__(self, trace: Any) -> None:
        names: dict[int, str] = {}
        tracks: dict[int, Any] = {}
        processes: dict[int, str] = {}
        stacks: dict[int, list[Any]] = defaultdict(list)
        self.all: list[tuple[str, str, str, int, int, int, Any]] = []
        self.counters: dict[str, list[float]] = defaultdict(list)
        for packet in trace.packet:
            for entry in packet.interned_data.event_names:
                names[entry.iid] = entry.name
            if packet.HasField("track_descriptor"):
                descriptor = packet.track_descriptor
                tracks[descriptor.uuid] = descriptor
                if descriptor.HasField("process"):
                    processes[descriptor.process.pid] = descriptor.process.process_name
            if not packet.HasField("track_event"):
                continue
            event = packet.track_event
            if event.type == event.TYPE_SLICE_BEGIN:
                stacks[event.track_uuid].append((packet.timestamp, event))
            elif event.type == event.TYPE_SLICE_END:
                begin, opened = stacks[event.track_uuid].pop()
                thread = tracks[event.track_uuid].thread
                where = (processes[thread.pid], thread.thread_name, names[opened.name_iid])
                assert packet.timestamp >= begin
                depth = len(stacks[event.track_uuid])
                self.all.append((*where, begin, packet.timestamp, depth, opened))
            elif event.type == event.TYPE_COUNTER:
                value = event.counter_value or event.double_counter_value
                self.counters[tracks[event.track_uuid].name].append(value)
        assert not any(stacks.values()), "a slice was left open"


def test_sums_of_16_ranks_and_3_steps_equal_the_summary(tmp_path: Path) -> None:
    write_run(tmp_path, ranks=16, steps=3)
    recording = load(tmp_path)
    written = write_timeline(recording, tmp_path / "timeline.pftrace")
    assert written.ranks == 16
    slices = Slices(parse(written.path))
    summary = json.loads((tmp_path / "summary.json").read_text())
    for rank in summary["ranks"]:
        steps = [
            {a.name_iid: a.int_value for a in event.debug_annotations}
            for process, thread, _, _, _, _, event in slices.all
            if process == f"rank {rank['rank']} (node 0)" and thread == "steps"
        ]
        values = [list(step.values()) for step in steps]
        counted = [value for value in values if value[0] >= 1]
        for column, key in ((1, "compute_s"), (2, "exposed_communication_s"), (3, "idle_s")):
            assert sum(value[column] for value in counted) * 1e-12 == pytest.approx(rank[key], rel=1e-12)
        # The kernels of one stream do not overlap: their slices sum to all compute, within 1 ns each.
        kernels = [
            end - begin
            for process, thread, _, begin, end, _, _ in slices.all
            if process == f"rank {rank['rank']} (node 0)" and thread == "GPU 0 stream 0"
        ]
        assert abs(sum(kernels) * 1000 - sum(value[1] for value in values)) <= 1000 * len(kernels)


def test_every_message_of_a_batch_has_its_arrow(tmp_path: Path) -> None:
    """A batch of messages is one span of its stream, with a peer for each."""
    write_run(tmp_path, ranks=2, steps=1)
    recording = load(tmp_path)
    recording.collectives.extend([replace(one, comm="other") for one in recording.collectives])
    slices = Slices(parse(write_timeline(recording, tmp_path / "t.pftrace").path))
    ends: dict[int, set[str]] = defaultdict(set)
    for process, _, _, _, _, _, event in slices.all:
        for flow in event.flow_ids:
            ends[flow].add(process)
    assert set(ends) == set(range(1, len(recording.collectives) + 1))
    assert all(len(processes) == 2 for processes in ends.values())


def test_members_of_a_collective_share_a_flow_and_show_their_wait(tmp_path: Path) -> None:
    write_run(tmp_path, ranks=4, steps=1)
    slices = Slices(parse(write_timeline(load(tmp_path), tmp_path / "t.pftrace").path))
    flows: dict[int, set[str]] = defaultdict(set)
    for process, _, _, _, _, _, event in slices.all:
        for flow in event.flow_ids:
            flows[flow].add(process)
    assert len(flows) == 3
    assert all(len(processes) == 4 for processes in flows.values())
    waits = [entry for entry in slices.all if entry[2] == "waiting for the other members"]
    # The slowest rank waits for nobody.
    assert waits
    assert {entry[0] for entry in waits} <= {f"rank {r} (node 0)" for r in range(3)}
    assert all(entry[5] == 1 for entry in waits)


def test_counters_hold_memory_and_bandwidth(tmp_path: Path) -> None:
    states, log = write_run(tmp_path, ranks=2, steps=2)
    slices = Slices(parse(write_timeline(load(tmp_path), tmp_path / "t.pftrace").path))
    assert max(slices.counters["memory allocated"]) == max(row[3] for row in states[0].memory)
    assert max(slices.counters["network bus bandwidth"]) == pytest.approx(
        max(c.bus_bandwidth_bytes_per_s for c in log)
    )
    assert slices.counters["network bus bandwidth"][-1] == 0


def test_links_are_counters_in_per_cent_of_their_capacity(tmp_path: Path) -> None:
    _, log = write_run(tmp_path, ranks=2, steps=2)
    recording = load(tmp_path)
    slices = Slices(parse(write_timeline(recording, tmp_path / "t.pftrace").path))
    for rank in range(2):
        points = slices.counters[f"node0/gpu{rank}->node0/nvswitch"]
        record = recording.links
        most = record.links[rank].bytes.max() / (record.bin_ps * 1e-12) / 450e9
        assert max(points) == pytest.approx(100 * most)
        assert points[-1] == 0
    shares = link_shares(recording)
    assert [share.name for share in shares] == [f"node0/gpu{rank}->node0/nvswitch" for rank in range(2)]
    begin_ps, end_ps = recording.counted_bounds_ps or (0, 0)
    inside = [c for c in log if c.start_ps >= begin_ps and c.end_ps <= end_ps]
    carried = sum(c.size_bytes * c.bus_factor for c in inside)
    # Bins at the borders of the steps count in part.
    assert shares[0].bytes == pytest.approx(carried, rel=0.1)
    assert shares[0].utilisation == pytest.approx(shares[0].bytes / 450e9 / ((end_ps - begin_ps) * 1e-12))
    assert shares[0].utilisation < shares[0].peak_utilisation <= most
    (kind,) = by_kind(shares)
    assert (kind.kind, kind.links) == ("node*/gpu*->node*/nvswitch", 2)


def test_steps_and_ranks_can_be_chosen(tmp_path: Path) -> None:
    write_run(tmp_path, ranks=4, steps=4)
    recording = load(tmp_path)
    write_timeline(recording, tmp_path / "t.pftrace", steps=(2, 3), ranks=[1, 3])
    slices = Slices(parse(tmp_path / "t.pftrace"))
    assert {entry[0] for entry in slices.all} == {"job", "rank 1 (node 0)", "rank 3 (node 0)"}
    assert {entry[2] for entry in slices.all if entry[1].startswith("steps")} == {"step 2"}
    with pytest.raises(ValueError, match="nothing recorded"):
        write_timeline(recording, tmp_path / "t.pftrace", steps=(7, 9))


def test_a_too_large_timeline_is_cut_and_says_so(tmp_path: Path) -> None:
    write_run(tmp_path, ranks=4, steps=2)
    written = write_timeline(load(tmp_path), tmp_path / "t.pftrace", max_events=60)
    assert written.ranks < 4
    assert "of 4 ranks" in written.warning


def test_ranges_are_checked() -> None:
    assert parse_steps("2:5") == (2, 5)
    assert parse_steps("3") == (3, 4)
    assert parse_steps(":4") == (0, 4)
    assert parse_ranks("0,2-3", world_size=4) == [0, 2, 3]
    for wrong in ("", "a", "5:2", "1:2:3"):
        with pytest.raises(ValueError, match="step"):
            parse_steps(wrong)
    with pytest.raises(ValueError, match="outside the job's ranks 0 to 3"):
        parse_ranks("2-4", world_size=4)
