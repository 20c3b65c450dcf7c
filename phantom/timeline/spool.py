"""Reads the detail that a rank recorded, RUN_DIR/spool/rank-RANK.msgpack (format: README.md)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgpack
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


def _rows(chunks: list[bytes], dtype: np.dtype[Any]) -> NDArray[Any]:
    return np.frombuffer(b"".join(chunks), dtype=dtype)


def read_rank(path: Path) -> RankSpool:
    """Reads one file. A file cut short by a killed rank gives what is whole.

    Raises SpoolError where the file is no spool or of a version this program does not know.
    """
    chunks: dict[str, list[bytes]] = {"spans": [], "waits": [], "memory": []}
    kernels: dict[int, Kernel] = {}
    reasons: dict[int, str] = {}
    steps: list[Step] = []
    tags: list[Tag] = []
    rank: int | None = None
    memory_events = 0
    with open(path, "rb") as file:
        records = msgpack.Unpacker(file, raw=False, strict_map_key=False, max_buffer_size=1 << 31)
        try:
            for record in records:
                kind = record[0]
                if rank is None:
                    if kind != "header" or record[1].get("version") != VERSION:
                        raise SpoolError(f"{path}: not a spool file of version {VERSION}")
                    rank = int(record[1]["rank"])
                elif kind in chunks:
                    chunks[kind].append(record[1])
                    if kind == "memory":
                        memory_events += len(record[1]) // MEMORY_ROW.itemsize
                elif kind == "kernel":
                    kernels[record[1]] = Kernel(*record[2:5])
                elif kind == "why":
                    reasons[record[1]] = record[2]
                elif kind == "step":
                    steps.append(Step(*record[1:7]))
                elif kind == "tag":
                    tags.append(Tag(memory_events, record[1], np.frombuffer(record[2], dtype="<u8")))
        except (msgpack.UnpackException, ValueError, TypeError, IndexError) as error:
            raise SpoolError(f"{path} is damaged ({error}); {REMEDY}") from error
        whole = records.tell() == path.stat().st_size
    if rank is None:
        raise NothingRecorded(f"{path}: empty")
    spans = _rows(chunks["spans"], SPAN_ROW)
    spans = spans[np.lexsort((spans["stream"], spans["end_ps"], spans["start_ps"]))]
    communication = (spans["kernel"] & COMMUNICATION_BIT) != 0
    spans["kernel"] &= ~COMMUNICATION_BIT
    waits = _rows(chunks["waits"], WAIT_ROW)
    return RankSpool(
        rank=rank,
        kernels=tuple(
            kernels.get(index, Kernel("?", "other", "unpriced")) for index in range(_length(kernels))
        ),
        spans=spans,
        communication=communication,
        steps=tuple(sorted(steps, key=lambda step: step.index)),
        waits=waits[np.lexsort((waits["clock"], waits["start_ps"]))],
        reasons=tuple(reasons.get(index, "") for index in range(_length(reasons))),
        memory=_rows(chunks["memory"], MEMORY_ROW),
        tags=tuple(tags),
        whole=whole,
    )


def _length(by_index: dict[int, Any]) -> int:
    return max(by_index, default=-1) + 1
