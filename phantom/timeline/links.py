"""What each link of the cluster carried over time, at the end of RUN_DIR/spool/collectives.msgpack."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class LinkCurve:
    """One direction of a cable or bus: what it can reach, and the bytes it carried in each bin."""

    name: str
    capacity_bytes_per_s: float
    bytes: NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class LinkRecord:
    """Bin i is the time from begin_ps + i * bin_ps on; links that carried nothing are left out."""

    begin_ps: int = 0
    bin_ps: int = 1
    links: tuple[LinkCurve, ...] = ()

    def bytes_between(self, link: LinkCurve, begin_ps: int, end_ps: int) -> float:
        """Bytes in [begin_ps, end_ps); a bin at the border counts by the part of it that lies inside."""
        if end_ps <= begin_ps or not len(link.bytes):
            return 0.0
        edges = self.begin_ps + self.bin_ps * np.arange(len(link.bytes) + 1, dtype=np.float64)
        total = np.concatenate([[0.0], np.cumsum(link.bytes)])
        low, high = np.interp([begin_ps, end_ps], edges, total)
        return float(high - low)

    def peak_bytes_per_s(self, link: LinkCurve, begin_ps: int, end_ps: int) -> float:
        """Highest mean rate over one bin that touches [begin_ps, end_ps)."""
        first = max(0, (begin_ps - self.begin_ps) // self.bin_ps)
        last = max(0, -((self.begin_ps - end_ps) // self.bin_ps))
        return float(link.bytes[first:last].max(initial=0.0)) / (self.bin_ps * 1e-12)


def packed(record: LinkRecord) -> Iterator[list[Any]]:
    """The records of the file: what the bins are, then each link."""
    yield ["links", {"begin_ps": record.begin_ps, "bin_ps": record.bin_ps}]
    for link in record.links:
        yield ["link", link.name, link.capacity_bytes_per_s, link.bytes.astype("<f8").tobytes()]


class LinkBins(msgspec.Struct, frozen=True):
    """Where the first bin begins and how long each is."""

    begin_ps: Annotated[int, msgspec.Meta(ge=-(1 << 61), le=1 << 61)]
    bin_ps: Annotated[int, msgspec.Meta(ge=1, le=1 << 61)]


def carried_bytes(rows: bytes) -> NDArray[np.float64]:
    """The bytes of each bin. Raises ValueError for values that no link carries."""
    carried = np.frombuffer(rows, dtype="<f8")
    if not (np.isfinite(carried).all() and (carried >= 0).all() and (carried < 1e24).all()):
        raise ValueError("a link carried an impossible number of bytes")
    return carried


def link_record(bins: LinkBins | None, links: Iterable[LinkCurve]) -> LinkRecord:
    """The record of a file; an empty one where it does not say what the bins are."""
    return LinkRecord(bins.begin_ps, bins.bin_ps, tuple(links)) if bins is not None else LinkRecord()
