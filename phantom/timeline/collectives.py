"""The simulator's record of collectives, messages and links, RUN_DIR/spool/collectives.msgpack."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import msgpack

from phantom.timeline.links import LinkRecord, packed, unpacked

VERSION = 1


@dataclass(frozen=True)
class Group:
    """A communicator: `ranks` are global, in group order."""

    key: str
    label: str
    ranks: tuple[int, ...]
    backend: str


@dataclass(frozen=True)
class Collective:
    """One collective, message or host copy as it ran.

    `members` are (global rank, node id): the node ties it to the rank's span. `size_bytes` is NCCL's
    message size. `bus_factor` times size_bytes over the duration is the bus bandwidth of nccl-tests
    (doc/PERFORMANCE.md there). `root` is a group rank. `send_counts[i][j]`: bytes from group rank
    i to j, for an uneven all_to_all.
    """

    comm: str
    seq: int
    kind: str
    size_bytes: int
    dtype: str
    members: tuple[tuple[int, int], ...]
    start_ps: int
    end_ps: int
    algorithm: str = ""
    protocol: str = ""
    channels: int = 0
    bus_factor: float = 1.0
    root: int = -1
    send_counts: tuple[tuple[int, ...], ...] | None = None

    @property
    def ranks(self) -> tuple[int, ...]:
        """Global ranks that took part."""
        return tuple(rank for rank, _ in self.members)

    @property
    def bus_bandwidth_bytes_per_s(self) -> float:
        """Bus bandwidth, 0 for an operation without duration."""
        duration_ps = self.end_ps - self.start_ps
        return self.size_bytes * self.bus_factor / (duration_ps * 1e-12) if duration_ps > 0 else 0.0


class CollectiveLog:
    """Writes the record, one operation at a time, as their ends become final."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file: IO[bytes] | None = open(path, "wb")  # noqa: SIM115 - closed by close()
        self._groups: set[str] = set()
        self._write(["header", {"version": VERSION}])

    def _write(self, record: list[Any]) -> None:
        if self._file is not None:
            self._file.write(msgpack.packb(record))

    def group(self, group: Group) -> None:
        """Notes a communicator; the second time is ignored."""
        if group.key not in self._groups:
            self._groups.add(group.key)
            self._write(["group", group.key, group.label, list(group.ranks), group.backend])

    def add(self, c: Collective) -> None:
        """Notes a finished operation."""
        members = [list(member) for member in c.members]
        self._write(
            [
                *("collective", c.comm, c.seq, c.kind, c.size_bytes, c.dtype, members, c.start_ps, c.end_ps),
                *(c.algorithm, c.protocol, c.channels, c.bus_factor, c.root, c.send_counts),
            ]
        )

    def links(self, record: LinkRecord) -> None:
        """Notes what the links carried; once, at the end."""
        for each in packed(record):
            self._write(each)

    def close(self) -> None:
        """Ends the file."""
        if self._file is not None:
            self._file.close()
            self._file = None


def read_collectives(path: Path) -> tuple[dict[str, Group], list[Collective]]:
    """Groups by key and operations by start time. A missing file gives none.

    Raises ValueError where the file is of another version.
    """
    groups, collectives, _ = read_all(path)
    return groups, collectives


def read_all(path: Path) -> tuple[dict[str, Group], list[Collective], LinkRecord]:
    """As read_collectives, and what the links carried."""
    groups: dict[str, Group] = {}
    collectives: list[Collective] = []
    links: list[list[Any]] = []
    if not path.exists():
        return groups, collectives, LinkRecord()
    with open(path, "rb") as file:
        for record in msgpack.Unpacker(file, raw=False, max_buffer_size=1 << 31):
            if record[0] == "header" and record[1].get("version") != VERSION:
                raise ValueError(f"{path}: version {record[1].get('version')}, this program reads {VERSION}")
            if record[0] == "group":
                groups[record[1]] = Group(record[1], record[2], tuple(record[3]), record[4])
            elif record[0] == "collective":
                members = tuple((rank, node) for rank, node in record[6])
                counts = record[14] and tuple(tuple(row) for row in record[14])
                fields = [*record[1:6], members, *record[7:14], counts]
                collectives.append(Collective(*fields))
            elif record[0] in ("links", "link"):
                links.append(record)
    collectives.sort(key=lambda c: (c.start_ps, c.end_ps, c.comm, c.seq))
    return groups, collectives, unpacked(links)


def by_member(collectives: Iterable[Collective]) -> dict[tuple[int, int], list[Collective]]:
    """Operations by (rank, node id). A launch of several messages is one node, so there may be several."""
    index: dict[tuple[int, int], list[Collective]] = {}
    for collective in collectives:
        for member in collective.members:
            index.setdefault(member, []).append(collective)
    return index
