"""What an operation turns into: parts, each a latency and then one or more flows that share links."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(eq=False)
class Shape:
    """Flows that start together, as arrays: flow i uses links[starts[i]:starts[i + 1]].

    A flow's progress is counted in bytes of its message; `loads` are bytes on the link per byte of
    progress. `weights` are fairness weights: connections (channels) per byte of load, so that every
    connection on a link gets the same share. `caps` bound the progress rate in bytes/s. A coflow (ring,
    tree, NVLS) is one flow with many links.
    """

    links: Ints
    loads: Floats
    starts: Ints
    weights: Floats
    caps: Floats
    key: bytes = b""
    touched: Ints = field(init=False)
    all_flows: Ints = field(init=False)
    row: Ints = field(init=False)
    demand: Floats = field(init=False)
    level_caps: Floats = field(init=False)
    number: int = -1
    solo: Floats | None = None

    def __post_init__(self) -> None:
        counts = np.diff(self.starts)
        self.row = np.repeat(np.arange(len(counts)), counts)
        self.demand = self.loads * self.weights[self.row]
        self.level_caps = self.caps / self.weights
        self.touched = self.links if len(counts) == 1 else np.unique(self.links)
        self.all_flows = np.arange(len(counts))
        self._representatives: Ints | None = None
        digest = hashlib.blake2b(digest_size=16)
        for array in (self.links, self.loads, self.starts, self.weights, self.caps):
            digest.update(np.ascontiguousarray(array).tobytes())
        self.key = digest.digest()

    @property
    def flows(self) -> int:
        """Number of flows."""
        return len(self.starts) - 1

    def representatives(self, capacity: Floats) -> Ints:
        """Of the links that exactly the same flows cross with the same loads, the one with the least
        capacity.
        """
        if self._representatives is None:
            scatter = np.random.default_rng(1).random(self.flows)[self.row]
            size = int(self.links.max()) + 1
            count = np.bincount(self.links, minlength=size)
            by_flow = np.bincount(self.links, weights=scatter, minlength=size)
            by_load = np.bincount(self.links, weights=scatter * self.demand, minlength=size)
            # Two sets of flows with equal sums of random numbers are equal; the sums are compared to 12
            # digits.
            order = np.lexsort((self.touched, capacity[self.touched]))
            best: dict[tuple[int, str, str], int] = {}
            for link in self.touched[order].tolist():
                best.setdefault((int(count[link]), f"{by_flow[link]:.12e}", f"{by_load[link]:.12e}"), link)
            self._representatives = np.array(sorted(best.values()))
        return self._representatives

    @staticmethod
    def single(loads: dict[int, float], *, weight: float, cap: float) -> Shape:
        """A coflow from a map link -> load."""
        ids = sorted(link for link, load in loads.items() if load > 0)
        return Shape(
            links=np.array(ids, dtype=np.int64),
            loads=np.array([loads[i] for i in ids], dtype=np.float64),
            starts=np.array([0, len(ids)], dtype=np.int64),
            weights=np.array([weight]),
            caps=np.array([cap]),
        )

    @staticmethod
    def many(flows: list[dict[int, float]], *, weights: list[float], caps: list[float]) -> Shape:
        """Independent flows, each a map link -> load."""
        ids: list[int] = []
        loads: list[float] = []
        starts = [0]
        for flow in flows:
            for link in sorted(flow):
                ids.append(link)
                loads.append(flow[link])
            starts.append(len(ids))
        return Shape(
            links=np.array(ids, dtype=np.int64),
            loads=np.array(loads, dtype=np.float64),
            starts=np.array(starts, dtype=np.int64),
            weights=np.array(weights, dtype=np.float64),
            caps=np.array(caps, dtype=np.float64),
        )


@dataclass(frozen=True)
class Part:
    """A start-up time, then flows of `sizes` bytes; without a shape it is the start-up time alone."""

    latency_ps: int
    shape: Shape | None
    sizes: Floats
