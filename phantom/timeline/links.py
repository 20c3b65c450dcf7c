"""What each link of the cluster carried over time, RUN_DIR/spool/links.msgpack."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import msgpack
import numpy as np
from numpy.typing import NDArray

VERSION = 1


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


def write_links(path: Path, record: LinkRecord) -> None:
    """Writes the file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    header = {"version": VERSION, "begin_ps": record.begin_ps, "bin_ps": record.bin_ps}
    with open(path, "wb") as file:
        file.write(msgpack.packb(["header", header]))
        for link in record.links:
            values = link.bytes.astype("<f8").tobytes()
            file.write(msgpack.packb(["link", link.name, link.capacity_bytes_per_s, values]))


def read_links(path: Path) -> LinkRecord:
    """Reads the file; a missing one gives an empty record. Raises ValueError for another version."""
    if not path.exists():
        return LinkRecord()
    links = []
    header: dict[str, int] = {}
    with open(path, "rb") as file:
        for record in msgpack.Unpacker(file, raw=False, max_buffer_size=1 << 31):
            if record[0] == "header":
                header = record[1]
                if header.get("version") != VERSION:
                    raise ValueError(f"{path}: version {header.get('version')}, this program reads {VERSION}")
            elif record[0] == "link":
                links.append(LinkCurve(record[1], record[2], np.frombuffer(record[3], dtype="<f8")))
    return LinkRecord(header["begin_ps"], header["bin_ps"], tuple(links))
