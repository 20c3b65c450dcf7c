"""Reads the detail that a rank recorded, RUN_DIR/spool/rank-RANK.msgpack (format: README.md)."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Annotated, Any

import msgpack
import msgspec
import numpy as np
from numpy.typing import NDArray

VERSION = 1
COMMUNICATION_BIT = np.uint32(0x80000000)

SPAN_ROW = np.dtype(
    [("start_ps", "<i8"), ("end_ps", "<i8"), ("node", "<u8"), ("stream", "<u4"), ("kernel", "<u4")]
)
WAIT_ROW = np.dtype([("start_ps", "<i8"), ("end_ps", "<i8"), ("clock", "<u4"), ("why", "<u4")])
MEMORY_ROW = np.dtype(
    [
        ("time_ps", "<i8"),
        ("address", "<u8"),
        ("bytes", "<i8"),
        ("allocated_bytes", "<i8"),
        ("reserved_bytes", "<i8"),
        ("device", "<u4"),
        ("phase", "<u4"),
    ]
)
"""`bytes` is negative where memory was given back; `phase` 1: by the backward pass."""


_MAX_TIME_PS = 1 << 61
Time = Annotated[int, msgspec.Meta(ge=-_MAX_TIME_PS, le=_MAX_TIME_PS)]
Rank = Annotated[int, msgspec.Meta(ge=0, le=1 << 30)]
Identifier = Annotated[int, msgspec.Meta(ge=0, le=1 << 22)]
"""Numbers of kernels and reasons are given in order, so that a large one is damage."""
DAMAGE = (
    msgpack.UnpackException,
    msgspec.ValidationError,
    ValueError,
    OverflowError,
    RecursionError,
)
"""What reading a damaged file raises."""

REMEDY = "`phantom report` without options needs none of it; simulate the job again for the detail"


class SpoolError(ValueError):
    """A spool file is damaged or of another version; the text names the file."""


class NothingRecorded(SpoolError):
    """A rank was killed before it had written anything."""


@dataclass(frozen=True)
class Kernel:
    """What a span is: operator or collective, its class, and where its duration came from."""

    name: str
    klass: str
    source: str


@dataclass(frozen=True)
class Step:
    """One settled step of one rank, times in ps; compute + exposed + idle = end - begin."""

    index: int
    begin_ps: int
    end_ps: int
    compute_ps: int
    exposed_ps: int
    idle_ps: int


@dataclass(frozen=True)
class Tag:
    """From memory event number `at` on, the blocks that live at `addresses` are known to hold `category`."""

    at: int
    category: str
    addresses: NDArray[np.uint64]


@dataclass(frozen=True)
class RankSpool:
    """One rank's recording. Arrays have the dtypes above; `spans` is sorted by start, then end."""

    rank: int
    kernels: tuple[Kernel, ...]
    spans: NDArray[Any]
    communication: NDArray[np.bool_]
    steps: tuple[Step, ...]
    waits: NDArray[Any]
    reasons: tuple[str, ...]
    memory: NDArray[Any]
    tags: tuple[Tag, ...]
    whole: bool = True
    """False where the file ended in the middle of a record."""

    def step(self, index: int) -> Step | None:
        """The step with this index, None where it was not recorded."""
        return next((step for step in self.steps if step.index == index), None)


class _Header(msgspec.Struct, array_like=True, tag="header", frozen=True):
    about: dict[str, Any]


class _KernelRecord(msgspec.Struct, array_like=True, tag="kernel", frozen=True):
    number: Identifier
    name: str
    klass: str
    source: str


class _Spans(msgspec.Struct, array_like=True, tag="spans", frozen=True):
    rows: bytes


class _Waits(msgspec.Struct, array_like=True, tag="waits", frozen=True):
    rows: bytes


class _Memory(msgspec.Struct, array_like=True, tag="memory", frozen=True):
    rows: bytes


class _Why(msgspec.Struct, array_like=True, tag="why", frozen=True):
    number: Identifier
    text: str


class _StepRecord(msgspec.Struct, array_like=True, tag="step", frozen=True):
    index: Annotated[int, msgspec.Meta(ge=0, le=1 << 30)]
    begin_ps: Time
    end_ps: Time
    compute_ps: Time
    exposed_ps: Time
    idle_ps: Time


class _TagRecord(msgspec.Struct, array_like=True, tag="tag", frozen=True):
    category: str
    addresses: bytes


_Record = _Header | _KernelRecord | _Spans | _Waits | _Memory | _Why | _StepRecord | _TagRecord


@dataclass
class _Parts:
    """What a file holds, as it is read."""

    rank: int | None = None
    kernels: dict[int, Kernel] = field(default_factory=dict)
    reasons: dict[int, str] = field(default_factory=dict)
    steps: list[Step] = field(default_factory=list)
    tags: list[Tag] = field(default_factory=list)
    spans: list[NDArray[Any]] = field(default_factory=list)
    waits: list[NDArray[Any]] = field(default_factory=list)
    memory: list[NDArray[Any]] = field(default_factory=list)
    memory_events: int = 0

    def take(self, record: Any) -> None:
        """Adds one record. Raises ValueError (also msgspec's) for one that is not as README.md says."""
        match record:
            case _Header(about):
                if self.rank is not None or about.get("version") != VERSION:
                    raise _OtherVersion
                self.rank = msgspec.convert(about.get("rank"), Rank)
            case _ if self.rank is None:
                raise _OtherVersion
            case _KernelRecord(number, name, klass, source):
                self.kernels[number] = Kernel(name, klass, source)
            case _Why(number, text):
                self.reasons[number] = text
            case _StepRecord():
                step = Step(*(getattr(record, name) for name in record.__struct_fields__))
                if step.end_ps < step.begin_ps:
                    raise ValueError(f"step {step.index} ends before it begins")
                self.steps.append(step)
            case _Spans(rows):
                self.spans.append(np.frombuffer(rows, dtype=SPAN_ROW))
            case _Waits(rows):
                self.waits.append(np.frombuffer(rows, dtype=WAIT_ROW))
            case _Memory(rows):
                self.memory.append(np.frombuffer(rows, dtype=MEMORY_ROW))
                self.memory_events += len(self.memory[-1])
            case _TagRecord(category, addresses):
                self.tags.append(Tag(self.memory_events, category, np.frombuffer(addresses, dtype="<u8")))

    def result(self, rank: int, *, whole: bool) -> RankSpool:
        """Puts the parts together. Raises ValueError where they do not fit each other."""
        spans = np.concatenate([*self.spans, np.empty(0, SPAN_ROW)])
        spans = spans[np.lexsort((spans["stream"], spans["end_ps"], spans["start_ps"]))]
        communication = (spans["kernel"] & COMMUNICATION_BIT) != 0
        spans["kernel"] &= ~COMMUNICATION_BIT
        waits = np.concatenate([*self.waits, np.empty(0, WAIT_ROW)])
        memory = np.concatenate([*self.memory, np.empty(0, MEMORY_ROW)])
        for rows in (spans, waits):
            _check((rows["start_ps"] <= rows["end_ps"]), "something ends before it starts")
            for name in ("start_ps", "end_ps"):
                _check(np.abs(rows[name] // 2) <= _MAX_TIME_PS // 2, "a time is beyond all bounds")
        _check(np.isin(spans["kernel"], list(self.kernels)), "a span names a kernel that is not there")
        _check(np.isin(waits["why"], list(self.reasons)), "a wait names a reason that is not there")
        _check(np.abs(memory["time_ps"] // 2) <= _MAX_TIME_PS // 2, "a time is beyond all bounds")
        for name in ("bytes", "allocated_bytes", "reserved_bytes"):
            _check(np.abs(memory[name] // 2) <= 1 << 56, "a size is beyond all bounds")
        indices = [step.index for step in self.steps]
        if len(set(indices)) < len(indices):
            raise ValueError("a step appears twice")
        unknown = Kernel("?", "other", "unpriced")
        return RankSpool(
            rank=rank,
            kernels=tuple(self.kernels.get(number, unknown) for number in range(_length(self.kernels))),
            spans=spans,
            communication=communication,
            steps=tuple(sorted(self.steps, key=lambda step: step.index)),
            waits=waits[np.lexsort((waits["clock"], waits["start_ps"]))],
            reasons=tuple(self.reasons.get(number, "") for number in range(_length(self.reasons))),
            memory=memory,
            tags=tuple(self.tags),
            whole=whole,
        )


class _OtherVersion(Exception):
    """The file does not begin as this version's files do."""


def _check(holds: NDArray[np.bool_], otherwise: str) -> None:
    if not holds.all():
        raise ValueError(otherwise)


def read_rank(path: Path) -> RankSpool:
    """Reads one file. A file cut short by a killed rank gives what is whole.

    Raises SpoolError where the file is not a spool, is damaged, or is of a version not known here;
    OSError where it cannot be read.
    """
    parts = _Parts()
    with open_file(path) as file:
        records = msgpack.Unpacker(file, raw=False, strict_map_key=False, max_buffer_size=1 << 31)
        try:
            for record in records:
                parts.take(msgspec.convert(record, _Record))
            whole = records.tell() == path.stat().st_size
            if parts.rank is None:
                raise NothingRecorded(f"{path}: empty")
            return parts.result(parts.rank, whole=whole)
        except _OtherVersion:
            raise SpoolError(f"{path}: not a spool file of version {VERSION}; {REMEDY}") from None
        except SpoolError:
            raise
        except DAMAGE as error:
            raise SpoolError(f"{path} is damaged ({error}); {REMEDY}") from error


def open_file(path: Path) -> IO[bytes]:
    """Opens a recorded file for reading. Raises SpoolError where it is not a file (a pipe would wait)."""
    if not path.is_file():
        raise SpoolError(f"{path} is not a file; {REMEDY}")
    return open(path, "rb")


def _length(by_index: dict[int, Any]) -> int:
    return max(by_index, default=-1) + 1
