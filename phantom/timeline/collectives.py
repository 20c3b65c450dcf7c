"""The simulator's record of collectives, messages and links, RUN_DIR/spool/collectives.msgpack."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Annotated, Any

import msgpack
import msgspec

from phantom.timeline.links import LinkBins, LinkCurve, LinkRecord, carried_bytes, link_record, packed
from phantom.timeline.spool import DAMAGE, REMEDY, Rank, SpoolError, Time, open_file

VERSION = 1
KINDS = frozenset(
    (
        "all_reduce",
        "reduce",
        "all_gather",
        "reduce_scatter",
        "all_to_all",
        "broadcast",
        "barrier",
        "gather",
        "scatter",
    )
) | {"send_recv", "h2d", "d2h"}
Size = Annotated[int, msgspec.Meta(ge=0, le=1 << 60)]
Node = Annotated[int, msgspec.Meta(ge=0)]


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


class _Header(msgspec.Struct, array_like=True, tag="header", frozen=True):
    about: dict[str, Any]


class _GroupRecord(msgspec.Struct, array_like=True, tag="group", frozen=True):
    key: str
    label: str
    ranks: tuple[Rank, ...]
    backend: str


class _CollectiveRecord(msgspec.Struct, array_like=True, tag="collective", frozen=True):
    comm: str
    seq: Time
    kind: str
    size_bytes: Size
    dtype: str
    members: Annotated[tuple[tuple[Rank, Node], ...], msgspec.Meta(min_length=1)]
    start_ps: Time
    end_ps: Time
    algorithm: str
    protocol: str
    channels: Size
    bus_factor: Annotated[float, msgspec.Meta(ge=0, le=1e6)]
    root: Annotated[int, msgspec.Meta(ge=-1, le=1 << 30)]
    send_counts: tuple[tuple[Size, ...], ...] | None


class _LinksRecord(msgspec.Struct, array_like=True, tag="links", frozen=True):
    about: LinkBins


class _LinkRow(msgspec.Struct, array_like=True, tag="link", frozen=True):
    name: str
    capacity_bytes_per_s: Annotated[float, msgspec.Meta(ge=0, le=1e18)]
    rows: bytes


_Record = _Header | _GroupRecord | _CollectiveRecord | _LinksRecord | _LinkRow


@dataclass
class _Parts:
    """What a file holds, as it is read."""

    groups: dict[str, Group] = field(default_factory=dict)
    collectives: list[Collective] = field(default_factory=list)
    bins: LinkBins | None = None
    links: list[LinkCurve] = field(default_factory=list)

    def take(self, record: Any) -> None:
        """Adds one record. Raises ValueError for one that is not as README.md says."""
        match record:
            case _Header(about):
                if (version := about.get("version")) != VERSION:
                    raise _OtherVersion(version)
            case _GroupRecord(key, label, ranks, backend):
                self.groups[key] = Group(key, label, ranks, backend)
            case _CollectiveRecord():
                self.collectives.append(_collective(record))
            case _LinksRecord(about):
                self.bins = about
            case _LinkRow(name, capacity, rows):
                self.links.append(LinkCurve(name, capacity, carried_bytes(rows)))


class _OtherVersion(Exception):
    """The version that the file names."""


def _collective(record: _CollectiveRecord) -> Collective:
    """Checks what one field cannot say. Raises ValueError."""
    found = Collective(*(getattr(record, name) for name in record.__struct_fields__))
    n = len(found.members)
    if found.kind not in KINDS:
        raise ValueError(f"a collective of the kind {found.kind!r}")
    if found.end_ps < found.start_ps:
        raise ValueError("a collective ends before it starts")
    if found.root >= n:
        raise ValueError(f"root {found.root} of {n} ranks")
    if found.kind == "send_recv" and n != 2:
        raise ValueError(f"a message between {n} ranks")
    counts = found.send_counts
    if counts is not None and (len(counts) != n or any(len(row) != n for row in counts)):
        raise ValueError("an all_to_all whose counts do not fit its ranks")
    return found


def read_all(path: Path) -> Log:
    """Reads a record; a missing or unfinished one gives what there is.

    Raises SpoolError where the file is damaged or of another version, OSError where it cannot be read.
    """
    parts = _Parts()
    if not path.exists():
        return Log(parts.groups, parts.collectives, LinkRecord(), False)
    with open_file(path) as file:
        records = msgpack.Unpacker(file, raw=False, max_buffer_size=1 << 31)
        try:
            for record in records:
                parts.take(msgspec.convert(record, _Record))
            carried = link_record(parts.bins, parts.links)
            whole = records.tell() == path.stat().st_size and parts.bins is not None
        except _OtherVersion as error:
            raise SpoolError(f"{path}: version {error}, this program reads {VERSION}; {REMEDY}") from None
        except DAMAGE as error:
            raise SpoolError(f"{path} is damaged ({error}); {REMEDY}") from error
    parts.collectives.sort(key=lambda c: (c.start_ps, c.end_ps, c.comm, c.seq))
    return Log(parts.groups, parts.collectives, carried, whole)


def by_member(collectives: Iterable[Collective]) -> dict[tuple[int, int], list[Collective]]:
    """Operations by (rank, node id). A launch of several messages is one node, so there may be several."""
    index: dict[tuple[int, int], list[Collective]] = {}
    for collective in collectives:
        for member in collective.members:
            index.setdefault(member, []).append(collective)
    return index
