"""What each link carried over time, from the rate changes of operations whose ends are final."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from netsim.blocks import PS, Flight
from netsim.parts import Floats, Ints

FIRST_BIN_PS = 1_000_000
MOST_CELLS = 2_000_000
"""Bound on links x bins: 16 MB."""
MOST_BINS = 4096
LEAST_BINS = 64


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
    two neighbours become one. A bin holds all bytes of its time, it is no sample. The same operations in the
    same order give the same bits.
    """

    def __init__(self, links: int) -> None:
        self.bins = max(LEAST_BINS, min(MOST_BINS, MOST_CELLS // max(links, 1))) & ~1
        self.bin_ps = FIRST_BIN_PS
        self.begin_ps: int | None = None
        self._end_ps = 0
        self._bytes = np.zeros((self.bins, links))

    def add(self, flight: Flight) -> None:
        """Adds a finished operation."""
        for stretch in stretches(flight):
            self._add(stretch)

    def _add(self, stretch: Stretch) -> None:
        self._make_room(stretch.begin_ps, stretch.end_ps)
        assert self.begin_ps is not None
        begin_ps, end_ps = stretch.begin_ps - self.begin_ps, stretch.end_ps - self.begin_ps
        first, last = begin_ps // self.bin_ps, (end_ps - 1) // self.bin_ps
        if first == last:
            self._bytes[first, stretch.links] += stretch.bytes_per_s * ((end_ps - begin_ps) * PS)
            return
        times_ps = np.full(last - first + 1, self.bin_ps)
        times_ps[0] = (first + 1) * self.bin_ps - begin_ps
        times_ps[-1] = end_ps - last * self.bin_ps
        self._bytes[first : last + 1, stretch.links] += np.outer(times_ps * PS, stretch.bytes_per_s)

    def _make_room(self, begin_ps: int, end_ps: int) -> None:
        """Makes the bins reach from `begin_ps` to `end_ps`: operations are added in order of their ends, so a
        long one may begin before all others.
        """
        if self.begin_ps is None:
            self.begin_ps = begin_ps
        self._end_ps = max(self._end_ps, end_ps)
        while True:
            missing = max(0, -((begin_ps - self.begin_ps) // self.bin_ps))
            if self._end_ps - self.begin_ps <= (self.bins - missing) * self.bin_ps:
                break
            self._widen()
        if missing:
            self._bytes = np.roll(self._bytes, missing, axis=0)
            self.begin_ps -= missing * self.bin_ps

    def _widen(self) -> None:
        half = self.bins // 2
        self._bytes[:half] = self._bytes[0::2] + self._bytes[1::2]
        self._bytes[half:] = 0.0
        self.bin_ps *= 2

    def used(self) -> Ints:
        """Links that carried something."""
        return np.flatnonzero(self._bytes.any(axis=0))

    def curve(self, link: int) -> Floats:
        """Bytes that the link carried in each bin, up to the last bin in which any link was used."""
        filled = np.flatnonzero(self._bytes.any(axis=1))
        return self._bytes[: filled[-1] + 1 if len(filled) else 0, link].copy()
