"""What each link carried over time, from the rate changes of operations whose ends are final."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from netsim.parts import Floats, Ints
from netsim.sharing.blocks import PS, Flight

FIRST_BIN_PS = 1_000_000
MOST_CELLS = 2_000_000
"""Bound on links x bins: 16 MB."""
MOST_BINS = 4096
LEAST_BINS = 64
GRAIN = 2.0**-16
"""Part of a byte in which bytes are counted, rounded down; sums below 137 GB in a bin are exact."""


@dataclass(frozen=True)
class Stretch:
    """A time during which the rates of some flows stay: bytes/s on each of `links`, which all differ."""

    begin_ps: int
    end_ps: int
    links: Ints
    bytes_per_s: Floats


def stretches(flight: Flight) -> Iterator[Stretch]:
    """The whole life of a finished operation, part by part. Its history must not have been trimmed."""
    for block in flight.blocks:
        ends = [entry[0] for entry in block.history[1:]] + [block.end_ps]
        for entry, end_ps in zip(block.history, ends):
            if end_ps > entry[0]:
                yield Stretch(entry[0], end_ps, *block.carried(entry))


class LinkUse:
    """Bytes by link and by bin of virtual time.

    The bins are as wide as it takes to keep links x bins below a bound: when time goes past the last one,
    two neighbours become one. A bin holds all bytes of its time, it is no sample. Bins begin at multiples of
    their width and bytes are counted in whole `GRAIN`s, so the same operations give the same bits in any
    order (which the order of real messages decides).
    """

    def __init__(self, links: int, *, bins: int = MOST_BINS) -> None:
        self.bins = max(LEAST_BINS, min(bins, MOST_CELLS // max(links, 1)))
        self.bin_ps = FIRST_BIN_PS
        self._first = 0
        self._earliest_ps: int | None = None
        self._latest_ps = 0
        self._bytes = np.zeros((self.bins, links))

    @property
    def begin_ps(self) -> int:
        """Where the first bin begins."""
        return self._first * self.bin_ps

    def add(self, flight: Flight) -> None:
        """Adds a finished operation."""
        for stretch in stretches(flight):
            self._add(stretch)

    def _add(self, stretch: Stretch) -> None:
        self._make_room(stretch.begin_ps, stretch.end_ps)
        begin_ps, end_ps = stretch.begin_ps - self.begin_ps, stretch.end_ps - self.begin_ps
        first, last = begin_ps // self.bin_ps, (end_ps - 1) // self.bin_ps
        edges_ps = np.arange(first, last + 2) * self.bin_ps - begin_ps
        edges_ps[0], edges_ps[-1] = 0, end_ps - begin_ps
        # What went by until each edge, not what each bin holds, is rounded: wider bins then hold the sums of
        # narrower ones to the bit.
        carried = np.floor(np.outer(edges_ps * PS, stretch.bytes_per_s) / GRAIN) * GRAIN
        self._bytes[first : last + 1, stretch.links] += np.diff(carried, axis=0)

    def _make_room(self, begin_ps: int, end_ps: int) -> None:
        """Makes the bins reach from `begin_ps` to `end_ps`, which may be before all others."""
        if self._earliest_ps is None:
            self._earliest_ps = begin_ps
            self._first = begin_ps // self.bin_ps
        self._earliest_ps = min(self._earliest_ps, begin_ps)
        self._latest_ps = max(self._latest_ps, end_ps)
        while -(-self._latest_ps // self.bin_ps) - self._earliest_ps // self.bin_ps > self.bins:
            self._widen()
        earlier = self._first - self._earliest_ps // self.bin_ps
        if earlier > 0:
            self._bytes = np.roll(self._bytes, earlier, axis=0)
            self._first -= earlier

    def _widen(self) -> None:
        odd = self._first & 1
        rows = np.zeros((self.bins + 2, self._bytes.shape[1]))
        rows[odd : odd + self.bins] = self._bytes
        rows = rows[: (self.bins + 2) & ~1]
        merged = rows[0::2] + rows[1::2]
        self._bytes[: len(merged)] = merged
        self._bytes[len(merged) :] = 0.0
        self._first //= 2
        self.bin_ps *= 2

    def used(self) -> Ints:
        """Links that carried something."""
        return np.flatnonzero(self._bytes.any(axis=0))

    def curve(self, link: int) -> Floats:
        """Bytes that the link carried in each bin, up to the last bin in which any link was used."""
        filled = np.flatnonzero(self._bytes.any(axis=1))
        return self._bytes[: filled[-1] + 1 if len(filled) else 0, link].copy()
