"""Writes one Chakra trace per rank, with the dependencies that the recorded times prove.

The recorder's times are exact, so what a kernel waited for is what ended at the very moment it started: the
work before it on its stream, an event of another stream, or (where nothing ended then) the host, which
becomes a node of its own.
phantom/export/README.md says what the traces leave out.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from phantom.export.chakra import execution_trace_pb2 as pb
from phantom.export.chakra.nodes import Carry, TraceFile, node
from phantom.timeline.collectives import Collective
from phantom.timeline.recording import Recording

HOST_COPIES = ("h2d", "d2h")
MESSAGES = "send_recv"
_COLLECTIVES = {
    "all_reduce": pb.ALL_REDUCE,
    # ASTRA-sim simulates no rooted reduction; an all_reduce of the same size is the nearest it has.
    "reduce": pb.ALL_REDUCE,
    "all_gather": pb.ALL_GATHER,
    "reduce_scatter": pb.REDUCE_SCATTER,
    "all_to_all": pb.ALL_TO_ALL,
    "broadcast": pb.BROADCAST,
    "barrier": pb.ALL_REDUCE,
}


class ExportError(ValueError):
    """The run cannot be exported; the text says why and what to do."""


@dataclass
class _Stream:
    """Ends of what was put on a stream, in order, with the nodes that end there."""

    ends_ps: list[int] = field(default_factory=list)
    nodes: list[list[int]] = field(default_factory=list)
    carry: Carry = field(default_factory=Carry)

    def add(self, end_ps: int, nodes: list[int]) -> None:
        self.ends_ps.append(end_ps)
        self.nodes.append(nodes)

    def last_by(self, time_ps: int) -> tuple[int, list[int]] | None:
        at = bisect_right(self.ends_ps, time_ps)
        return (self.ends_ps[at - 1], self.nodes[at - 1]) if at else None


def groups(recording: Recording) -> dict[tuple[int, ...], str]:
    """Groups by their ranks, numbered from 1: ASTRA-sim needs decimal names, and takes 0 for all ranks."""
    members = sorted({c.ranks for c in recording.collectives if c.kind != MESSAGES and len(c.ranks) > 1})
    return {ranks: str(number) for number, ranks in enumerate(members, start=1)}


def export_chakra(recording: Recording, prefix: Path, *, steps: tuple[int, int] | None = None) -> list[Path]:
    """Writes PREFIX.RANK.et for every rank and PREFIX.groups.json; returns the paths.

    Of the given steps (first <= index < last), else of all recorded ones. The groups are in that JSON file
    (ASTRA-sim's --comm-group-configuration) and not in a METADATA node, on which its statistics abort.
    Raises ExportError where a rank or the steps were not recorded.
    """
    world = recording.summary.world_size
    missing = [rank for rank in range(world) if rank not in recording.ranks]
    if missing or not world:
        raise ExportError(
            f"{recording.folder}: {len(missing)} of {world} ranks were not recorded, and ASTRA-sim needs "
            "all; run again with --timeline"
        )
    indices = [i for i in recording.step_indices if steps is None or steps[0] <= i < steps[1]]
    if not indices:
        raise ExportError(f"{recording.folder}: none of these steps was recorded ({recording.extent})")
    names = groups(recording)
    prefix.parent.mkdir(parents=True, exist_ok=True)
    paths = []
    for rank in recording.ranks:
        path = prefix.with_name(f"{prefix.name}.{rank}.et")
        with TraceFile(path) as file:
            for made in _RankExporter(recording, rank, names, indices).nodes():
                file.write(made)
        paths.append(path)
    listing = prefix.with_name(f"{prefix.name}.groups.json")
    listing.write_text(json.dumps({name: list(ranks) for ranks, name in names.items()}) + "\n")
    return [*paths, listing]


class _RankExporter:
    """Makes the nodes of one rank in order of start."""

    def __init__(
        self, recording: Recording, rank: int, names: dict[tuple[int, ...], str], indices: list[int]
    ) -> None:
        self._recording = recording
        self._rank = rank
        self._names = names
        self._spool = recording.ranks[rank]
        # The same stretch of time for all ranks, from the end of the step before on any rank.
        steps = [s for spool in recording.ranks.values() for s in spool.steps if s.index in indices]
        self._begin_ps, self._end_ps = min(s.begin_ps for s in steps), max(s.end_ps for s in steps)
        self._streams: dict[int, _Stream] = {}
        self._next = 1
        self._host: tuple[int, list[int]] = (self._begin_ps, [])
        self._host_carry = Carry()
        self._made: list[Any] = []

    def nodes(self) -> list[Any]:
        for row, network in zip(self._spool.spans.tolist(), self._spool.communication.tolist()):
            start_ps, end_ps, number, stream, kernel = row
            operations = self._recording.collectives_of.get((self._rank, number), []) if network else []
            # All members must agree, so a collective counts by its own start, not by when a rank was ready.
            counts_ps = min((c.start_ps for c in operations), default=start_ps)
            until_ps = self._end_ps if operations else self._end_ps + 1
            if not self._begin_ps <= counts_ps < until_ps:
                continue
            start_ps = max(start_ps, self._begin_ps)
            deps = self._dependencies(stream, start_ps)
            on = self._streams.setdefault(stream, _Stream())
            made: list[int] = []
            for operation in operations:
                made += self._communication(operation, deps, start_ps)
            if not made:
                what = self._spool.kernels[kernel]
                extra: dict[str, bool | int | str] = {"op_schema": what.name, "class": what.klass}
                made = [
                    self._compute(
                        what.name, deps, start_ps, on.carry.round_us(end_ps - start_ps), stream, extra
                    )
                ]
            on.add(end_ps, made)
        return self._made

    def _dependencies(self, stream: int, start_ps: int) -> list[int]:
        """What must have ended; makes a node for the host's time where the host was what it waited for."""
        deps: list[int] = []
        latest_ps, latest = self._host
        for key, on in self._streams.items():
            found = on.last_by(start_ps)
            if found is None:
                continue
            if key == stream:
                deps += found[1]
            if found[0] > latest_ps:
                latest_ps, latest = found[0], list(found[1])
            elif found[0] == latest_ps:
                latest = [*latest, *found[1]]
        if latest_ps < start_ps:
            latest = [self._wait_for_host(latest, self._host[1], latest_ps, start_ps)]
        return [*deps, *latest]

    def _wait_for_host(self, base: list[int], before: list[int], from_ps: int, to_ps: int) -> int:
        duration_us = self._host_carry.round_us(to_ps - from_ps)
        number = self._add(
            "host",
            pb.COMP_NODE,
            [*base, *before],
            from_ps,
            duration_us,
            # Not `is_cpu_op`: ASTRA-sim's statistics throw at the end of a trace with a CPU node in it.
            {"class": "host"},
        )
        self._host = (to_ps, [number])
        return number

    def _add(
        self,
        name: str,
        kind: pb.NodeType,
        deps: list[int],
        start_ps: int,
        duration_us: int,
        attributes: dict[str, bool | int | str],
    ) -> int:
        number = self._next
        self._next += 1
        made = node(
            number, name, kind, deps=deps, start_ps=start_ps, duration_us=duration_us, attributes=attributes
        )
        self._made.append(made)
        return number

    def _compute(
        self,
        name: str,
        deps: list[int],
        start_ps: int,
        duration_us: int,
        stream: int,
        extra: dict[str, bool | int | str],
    ) -> int:
        return self._add(name, pb.COMP_NODE, deps, start_ps, duration_us, {"stream": stream, **extra})

    def _communication(self, c: Collective, deps: list[int], start_ps: int) -> list[int]:
        duration_us = (c.end_ps - c.start_ps) // 1_000_000
        n = len(c.members)
        if c.kind in HOST_COPIES or n < 2:
            return [self._compute(c.kind, deps, start_ps, duration_us, 0, {"class": "copy"})]
        if c.kind == MESSAGES:
            (source, _), (destination, _) = c.members
            return self._transfers(c, [(source, destination, c.size_bytes)], deps, start_ps, duration_us)
        if c.kind in ("gather", "scatter"):
            return self._transfers(c, _rooted(c), deps, start_ps, duration_us)
        if c.send_counts is not None:
            pairs = [
                (c.ranks[i], c.ranks[j], size)
                for i, row in enumerate(c.send_counts)
                for j, size in enumerate(row)
                if i != j and size
            ]
            return self._transfers(c, pairs, deps, start_ps, duration_us)
        size = max(c.size_bytes // n if c.kind == "all_gather" else c.size_bytes, 1)
        attributes: dict[str, bool | int | str] = {
            "comm_type": _COLLECTIVES[c.kind],
            "comm_size": size,
            "pg_name": self._names[c.ranks],
            "collective": c.kind,
        }
        if c.kind == "broadcast":
            attributes["root"] = c.root
        return [self._add(c.kind, pb.COMM_COLL_NODE, deps, start_ps, duration_us, attributes)]

    def _transfers(
        self,
        c: Collective,
        pairs: list[tuple[int, int, int]],
        deps: list[int],
        start_ps: int,
        duration_us: int,
    ) -> list[int]:
        """Sends and receives of this rank among (source, destination, bytes); the tag is the operation's."""
        made = []
        for source, destination, size in pairs:
            attributes: dict[str, bool | int | str] = {
                "comm_src": source,
                "comm_dst": destination,
                "comm_size": max(size, 1),
                "comm_tag": self._recording.number_of[id(c)],
            }
            if source == self._rank:
                made.append(
                    self._add(
                        f"send to {destination}", pb.COMM_SEND_NODE, deps, start_ps, duration_us, attributes
                    )
                )
            if destination == self._rank:
                made.append(
                    self._add(
                        f"receive from {source}", pb.COMM_RECV_NODE, deps, start_ps, duration_us, attributes
                    )
                )
        return made


def _rooted(c: Collective) -> list[tuple[int, int, int]]:
    """The transfers of a gather or scatter."""
    root = c.ranks[max(c.root, 0)]
    piece = c.size_bytes // len(c.members)
    others = [rank for rank in c.ranks if rank != root]
    if c.kind == "gather":
        return [(rank, root, piece) for rank in others]
    return [(root, rank, piece) for rank in others]
