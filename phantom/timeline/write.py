"""The Perfetto timeline of a recorded run: ranks are processes, streams and CPU threads are threads."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from phantom.timeline.collectives import Collective
from phantom.timeline.counters import bandwidth_curve, devices, link_curve, memory_curve, thin
from phantom.timeline.perfetto import Arguments, PerfettoWriter
from phantom.timeline.recording import Recording
from phantom.timeline.spool import RankSpool

MAX_EVENTS = 5_000_000
"""About 400 MB, what a browser still opens; more is cut off at a rank's border, and said."""
MAX_COUNTER_POINTS = 20_000
MAX_LINKS = 256
"""Counters of links, those that carried most of their capacity; the page and summary.json have all kinds."""

_CPU_TID, _STREAM_TID = 1, 1000


@dataclass(frozen=True)
class Written:
    """What went into the file. `warning` says what had to be left out, or is empty."""

    path: Path
    events: int
    ranks: int
    warning: str = ""


def write_timeline(
    recording: Recording,
    path: Path,
    *,
    steps: tuple[int, int] | None = None,
    ranks: Collection[int] | None = None,
    max_events: int = MAX_EVENTS,
) -> Written:
    """Writes the timeline of the given steps (first <= index < last) and ranks; all recorded ones by default.

    Raises ValueError where nothing of what was asked for has been recorded.
    """
    chosen = [rank for rank in recording.ranks if ranks is None or rank in ranks]
    indices = [i for i in recording.step_indices if steps is None or steps[0] <= i < steps[1]]
    if not chosen or (steps is not None and not indices):
        raise ValueError(
            f"{recording.folder}: nothing recorded for these steps and ranks ({recording.extent})"
        )
    window = None if steps is None else _window(recording, indices)
    with PerfettoWriter(path) as writer:
        _write_job(writer, recording, indices)
        _write_links(writer, recording, window)
        warning = ""
        for number, rank in enumerate(chosen):
            if writer.events > max_events:
                warning = f"timeline cut after {number} of {len(chosen)} ranks ({writer.events} events)"
                chosen = chosen[:number]
                break
            _RankWriter(writer, recording, recording.ranks[rank], window).write()
        return Written(path, writer.events, len(chosen), warning)


def _window(recording: Recording, indices: list[int]) -> tuple[int, int]:
    begins = [
        step.begin_ps for spool in recording.ranks.values() for step in spool.steps if step.index in indices
    ]
    ends = [
        step.end_ps for spool in recording.ranks.values() for step in spool.steps if step.index in indices
    ]
    return min(begins), max(ends)


def _write_job(writer: PerfettoWriter, recording: Recording, indices: list[int]) -> None:
    job = writer.process(1, "job")
    track = writer.thread(job, 1, 1, "steps (all ranks)")
    for index in indices:
        begin_ps, end_ps = recording.step_bounds_ps(index)
        writer.begin(begin_ps, writer.template(track, f"step {index}", ("step",)), {"step": index})
        writer.end(end_ps, track)


def _write_links(writer: PerfettoWriter, recording: Recording, window: tuple[int, int] | None) -> None:
    """One counter per link, in per cent of its capacity, below a process of their own."""
    record = recording.links
    chosen = sorted(
        record.links, key=lambda link: (-link.bytes.sum() / max(link.capacity_bytes_per_s, 1.0), link.name)
    )[:MAX_LINKS]
    if not chosen:
        return
    pid = recording.summary.world_size + 2
    links = writer.process(pid, "links", order=pid)
    for number, link in enumerate(sorted(chosen, key=lambda link: link.name)):
        track = writer.counter(links, link.name, unit="% of capacity", order=number)
        for time_ps, rate in link_curve(record, link):
            if window is None or window[0] <= time_ps < window[1]:
                writer.count(time_ps, track, 100.0 * rate / link.capacity_bytes_per_s)


class _RankWriter:
    """Writes one rank. `window`: begin and end in ps, None for everything."""

    def __init__(
        self, writer: PerfettoWriter, recording: Recording, spool: RankSpool, window: tuple[int, int] | None
    ) -> None:
        self._writer = writer
        self._recording = recording
        self._spool = spool
        self._window = window
        self._pid = spool.rank + 2  # 0 is the idle process to Perfetto, 1 is the job
        nodes = max(recording.summary.nodes, 1)
        per_node = max(recording.summary.world_size // nodes, 1)
        name = f"rank {spool.rank} (node {spool.rank // per_node})"
        self._process = writer.process(self._pid, name, order=spool.rank + 1)

    def _inside(self, start_ps: int, end_ps: int) -> bool:
        return self._window is None or (end_ps > self._window[0] and start_ps < self._window[1])

    def write(self) -> None:
        self._write_steps()
        self._write_waits()
        self._write_streams()
        self._write_memory()
        self._write_bandwidth()

    def _write_steps(self) -> None:
        w = self._writer
        track = w.thread(self._process, self._pid, _CPU_TID - 1 + 900, "steps", order=0)
        for step in self._spool.steps:
            if self._inside(step.begin_ps, step.end_ps):
                arguments: Arguments = {
                    "step": step.index,
                    "compute_ps": step.compute_ps,
                    "exposed_communication_ps": step.exposed_ps,
                    "idle_ps": step.idle_ps,
                }
                w.begin(step.begin_ps, w.template(track, f"step {step.index}", ("step",)), arguments)
                w.end(step.end_ps, track)

    def _write_waits(self) -> None:
        w = self._writer
        tracks: dict[int, int] = {}
        for start_ps, end_ps, clock, why in self._spool.waits.tolist():
            if not self._inside(start_ps, end_ps):
                continue
            if clock not in tracks:
                name = "CPU" if clock == 0 else f"CPU thread {clock}"
                tracks[clock] = w.thread(self._process, self._pid, _CPU_TID + clock, name, order=1 + clock)
            w.begin(start_ps, w.template(tracks[clock], self._spool.reasons[why], ("wait",)))
            w.end(end_ps, tracks[clock])

    def _write_streams(self) -> None:
        w = self._writer
        spool = self._spool
        tracks: dict[int, int] = {}
        templates: dict[tuple[int, int], bytes] = {}
        collectives = self._recording.collectives_of
        begin, end, inside = w.begin, w.end, self._inside
        for (start_ps, end_ps, node, stream, kernel), network in zip(
            spool.spans.tolist(), spool.communication.tolist()
        ):
            if not inside(start_ps, end_ps):
                continue
            track = tracks.get(stream)
            if track is None:
                device, number = divmod(stream, 65536)
                name = f"GPU {device} stream {number}"
                tid = _STREAM_TID + stream
                track = tracks[stream] = w.thread(
                    self._process, self._pid, tid, name, order=100 + len(tracks)
                )
            template = templates.get((stream, kernel))
            if template is None:
                what = spool.kernels[kernel]
                categories = ("communication",) if network else (what.klass, what.source)
                template = templates[stream, kernel] = w.template(track, what.name, categories)
            operations = collectives.get((spool.rank, node), ()) if network else ()
            if operations:
                self._write_collective(track, template, start_ps, end_ps, list(operations))
            else:
                begin(start_ps, template)
                end(end_ps, track)

    def _write_collective(
        self, track: int, template: bytes, start_ps: int, end_ps: int, operations: list[Collective]
    ) -> None:
        """A collective's slice with what it did, and inside it the wait for the other members."""
        w = self._writer
        last = max(operations, key=lambda c: (c.end_ps, c.start_ps, c.comm, c.seq))
        group = self._recording.groups.get(last.comm)
        arguments: Arguments = {
            "kind": last.kind,
            "bytes": sum(c.size_bytes for c in operations),
            "dtype": last.dtype,
            "group": group.label if group is not None else last.comm,
            "sequence": last.seq,
            "ranks": ",".join(map(str, last.ranks[:64])),
            "algorithm": last.algorithm,
            "protocol": last.protocol,
            "channels": last.channels,
            "bus_bandwidth_gb_per_s": last.bus_bandwidth_bytes_per_s / 1e9,
        }
        numbers = self._recording.number_of
        w.begin(start_ps, template, arguments, [numbers[id(c)] for c in operations])
        started_ps = min(max(min(c.start_ps for c in operations), start_ps), end_ps)
        if started_ps > start_ps:
            w.begin(start_ps, w.template(track, "waiting for the other members", ("wait",)))
            w.end(started_ps, track)
        w.end(end_ps, track)

    def _write_memory(self) -> None:
        w = self._writer
        for device in devices(self._spool):
            rows = memory_curve(self._spool, device)
            suffix = "" if device == 0 or len(devices(self._spool)) == 1 else f" (GPU {device})"
            for name in ("allocated", "reserved"):
                track = w.counter(self._process, f"memory {name}{suffix}", bytes_=True, order=1000)
                values = rows[f"{name}_bytes"]
                for at in thin(values, MAX_COUNTER_POINTS).tolist():
                    time_ps = int(rows["time_ps"][at])
                    if self._inside(time_ps, time_ps + 1):
                        w.count(time_ps, track, int(values[at]))

    def _write_bandwidth(self) -> None:
        curve = bandwidth_curve(self._recording.collectives_by_rank.get(self._spool.rank, ()))
        if not curve:
            return
        w = self._writer
        track = w.counter(self._process, "network bus bandwidth", unit="B/s", order=1001)
        for time_ps, value in curve:
            if self._inside(time_ps, time_ps + 1):
                w.count(time_ps, track, float(value))
