"""Writes tracks, slices, flows and counters in Perfetto's trace format.

Field numbers: protos/perfetto/trace/perfetto_trace.proto of google/perfetto (v59). Times are given in ps;
Perfetto counts whole nanoseconds, so a slice's length is right within 1 ns.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import IO

from phantom.timeline import protobuf as pb

_SLICE_BEGIN, _SLICE_END, _COUNTER = 1, 2, 4
# trusted_packet_sequence_id = 1, sequence_flags = SEQ_NEEDS_INCREMENTAL_STATE
_SEQUENCE = pb.integer(10, 1) + pb.integer(13, 2)
_UNIT_SIZE_BYTES = 3
_EXPLICIT_ORDER = 3

Argument = int | float | str
Arguments = dict[str, Argument]


def nanoseconds(time_ps: int) -> int:
    """Nearest whole nanosecond."""
    return (time_ps + 500) // 1000


class PerfettoWriter:
    """Writes one trace file; a context manager. `events` counts the slices and counter values written."""

    def __init__(self, path: Path) -> None:
        self._file: IO[bytes] = open(path, "wb")  # noqa: SIM115 - closed by close()
        self._next_track = 1
        self._names: dict[tuple[int, str], int] = {}
        self._ends: dict[int, bytes] = {}
        self.events = 0
        # The first packet of the sequence clears the interned names.
        self._packet(pb.integer(10, 1) + pb.integer(13, 1) + pb.integer(87, 1))

    def __enter__(self) -> PerfettoWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the file."""
        self._file.close()

    def _packet(self, body: bytes) -> None:
        self._file.write(b"\x0a" + pb.varint(len(body)) + body)

    def _timed(self, time_ps: int, rest: bytes) -> None:
        stamp = pb.varint(nanoseconds(time_ps))
        self._file.write(b"\x0a" + pb.varint(len(stamp) + 1 + len(rest)) + b"\x40" + stamp + rest)

    def _track(self, *parts: bytes) -> int:
        track = self._next_track
        self._next_track += 1
        self._packet(_SEQUENCE + pb.message(60, pb.integer(1, track), *parts))
        self._ends[track] = _SEQUENCE + pb.message(11, pb.integer(9, _SLICE_END), pb.integer(11, track))
        return track

    def process(self, pid: int, name: str, *, order: int = 0) -> int:
        """A process; returns its track."""
        descriptor = pb.message(3, pb.integer(1, pid), pb.text(6, name), pb.integer(5, order))
        return self._track(descriptor, pb.integer(11, _EXPLICIT_ORDER))

    def thread(self, process: int, pid: int, tid: int, name: str, *, order: int = 0) -> int:
        """A thread of a process; returns its track."""
        descriptor = pb.message(4, pb.integer(1, pid), pb.integer(2, tid), pb.text(5, name))
        return self._track(pb.integer(5, process), descriptor, pb.integer(12, order))

    def track(self, parent: int, name: str, *, order: int = 0) -> int:
        """A track of slices below `parent`."""
        return self._track(pb.integer(5, parent), pb.text(2, name), pb.integer(12, order))

    def counter(self, parent: int, name: str, *, unit: str = "", bytes_: bool = False, order: int = 0) -> int:
        """A counter below `parent`."""
        kind = pb.integer(3, _UNIT_SIZE_BYTES) if bytes_ else pb.text(6, unit)
        return self._track(
            pb.integer(5, parent), pb.text(2, name), pb.message(8, kind), pb.integer(12, order)
        )

    def _intern(self, kind: int, name: str) -> int:
        """Number of a name. `kind`: field of InternedData (1 categories, 2 events, 3 arguments)."""
        known = self._names.get((kind, name))
        if known is not None:
            return known
        number = len(self._names) + 1
        self._names[kind, name] = number
        entry = pb.message(kind, pb.integer(1, number), pb.text(2, name))
        self._packet(_SEQUENCE + pb.message(12, entry))
        return number

    def template(self, track: int, name: str, categories: tuple[str, ...] = ()) -> bytes:
        """What all slices of one name on one track share, for begin()."""
        parts = [pb.integer(9, _SLICE_BEGIN), pb.integer(11, track), pb.integer(10, self._intern(2, name))]
        parts += [pb.integer(3, self._intern(1, category)) for category in categories]
        return b"".join(parts)

    def begin(
        self, time_ps: int, template: bytes, arguments: Arguments | None = None, flows: Iterable[int] = ()
    ) -> None:
        """Opens a slice. Slices with a flow in common are tied by arrows in order of time."""
        parts = template
        for name, value in (arguments or {}).items():
            parts += pb.message(4, pb.integer(1, self._intern(3, name)), _value(value))
        for flow in flows:
            parts += pb.fixed64(47, flow)
        self._timed(time_ps, _SEQUENCE + pb.message(11, parts))
        self.events += 1

    def end(self, time_ps: int, track: int) -> None:
        """Closes the innermost open slice of the track; slices of a track are written in order of time."""
        self._timed(time_ps, self._ends[track])

    def count(self, time_ps: int, track: int, value: int | float) -> None:
        """A counter's value from this time on."""
        number = pb.integer(30, value) if isinstance(value, int) else pb.double(44, value)
        event = pb.message(11, pb.integer(9, _COUNTER), pb.integer(11, track), number)
        self._timed(time_ps, _SEQUENCE + event)
        self.events += 1


def _value(value: Argument) -> bytes:
    if isinstance(value, int):
        return pb.integer(4, value)
    return pb.double(5, value) if isinstance(value, float) else pb.text(6, value)
