"""The simulator's record of collectives, messages and links, RUN_DIR/spool/collectives.msgpack."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import msgpack

from phantom.timeline.links import LinkRecord, packed, unpacked
from phantom.timeline.spool import REMEDY, SpoolError

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
    """Writes the record, one operation at a time, as their ends become final.

    Where the file cannot be written any more (a full disk) the record ends there and `trouble` says why: the
    job's result does not depend on it.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path
        self.trouble: str | None = None
        self._file: IO[bytes] | None = open(path, "wb")  # noqa: SIM115 - closed by close()
        self._groups: set[str] = set()
        self._write(["header", {"version": VERSION}])

    def _write(self, record: list[Any]) -> None:
        if self._file is None:
            return
        try:
            self._file.write(msgpack.packb(record))
        except OSError as error:
            self._fail(error)

    def _fail(self, error: OSError) -> None:
        self.trouble = f"the record of collectives and links ends early: {self._path}: {error.strerror}"
        if self._file is not None:
            # What is buffered still would be written by close(), and fail again.
            with contextlib.suppress(OSError):
                self._file.close()
            self._file = None

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
            try:
                self._file.close()
            except OSError as error:
                self._fail(error)
            self._file = None


@dataclass(frozen=True)
class Log:
    """What a record holds: groups by key, operations by start time, what the links carried.

    `whole`: the simulator wrote it to its end.
    """

    groups: dict[str, Group]
    collectives: list[Collective]
    links: LinkRecord
    whole: bool


def read_all(path: Path) -> Log:
    """Reads a record; a missing or unfinished one gives what there is.

    Raises SpoolError where the file is damaged or of another version.
    """
    groups: dict[str, Group] = {}
    collectives: list[Collective] = []
    links: list[list[Any]] = []
    if not path.exists():
        return Log(groups, collectives, LinkRecord(), False)
    with open(path, "rb") as file:
        records = msgpack.Unpacker(file, raw=False, max_buffer_size=1 << 31)
        try:
            for record in records:
                _take(record, path, groups, collectives, links)
            carried = unpacked(links)
        except (msgpack.UnpackException, ValueError, TypeError, LookupError, AttributeError) as error:
            if isinstance(error, SpoolError):
                raise
            raise SpoolError(f"{path} is damaged ({error}); {REMEDY}") from error
        whole = records.tell() == path.stat().st_size and any(record[0] == "links" for record in links)
    collectives.sort(key=lambda c: (c.start_ps, c.end_ps, c.comm, c.seq))
    return Log(groups, collectives, carried, whole)


def _take(
    record: list[Any], path: Path, groups: dict[str, Group], collectives: list[Collective], links: list[Any]
) -> None:
    if record[0] == "header":
        if (version := record[1].get("version")) != VERSION:
            raise SpoolError(f"{path}: version {version}, this program reads {VERSION}; {REMEDY}")
    elif record[0] == "group":
        groups[record[1]] = Group(record[1], record[2], tuple(record[3]), record[4])
    elif record[0] == "collective":
        members = tuple((rank, node) for rank, node in record[6])
        counts = record[14] and tuple(tuple(row) for row in record[14])
        fields = [*record[1:6], members, *record[7:14], counts]
        collectives.append(Collective(*fields))
    elif record[0] in ("links", "link"):
        links.append(record)


def by_member(collectives: Iterable[Collective]) -> dict[tuple[int, int], list[Collective]]:
    """Operations by (rank, node id). A launch of several messages is one node, so there may be several."""
    index: dict[tuple[int, int], list[Collective]] = {}
    for collective in collectives:
        for member in collective.members:
            index.setdefault(member, []).append(collective)
    return index
