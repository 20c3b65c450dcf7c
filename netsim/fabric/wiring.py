"""The links of a job as they are laid, with `[degrade]` applied."""

from __future__ import annotations

import fnmatch
from dataclasses import dataclass

from netsim.cluster.spec import ClusterSpec
from netsim.errors import ClusterError

Hop = tuple[int, float]
"""A link id with the share of the flow's bytes that crosses it."""


@dataclass(frozen=True)
class Link:
    """One direction of a cable or bus. `bundle` marks the sum of parallel links that sprayed packets use."""

    name: str
    capacity_bytes_per_s: float
    latency_s: float
    bundle: bool = False


class Wiring:
    """The directed links of `nodes` servers and their fabric; ids count up as they are laid."""

    def __init__(self, cluster: ClusterSpec, *, nodes: int, gpus_per_node: int) -> None:
        self.cluster = cluster
        self.nodes = nodes
        self.gpus_per_node = gpus_per_node
        self.links: list[Link] = []
        self.index: dict[str, int] = {}
        self._degraded: set[str] = set()

    def add(
        self, source: str, destination: str, capacity: float, latency: float, *, bundle: bool = False
    ) -> int:
        """Add a directed link after applying `[degrade]`; return its id."""
        name = f"{source}->{destination}"
        if not bundle:
            capacity *= self.degrade_factor(source, destination)
        self.index[name] = len(self.links)
        self.links.append(Link(name, capacity, latency, bundle))
        return len(self.links) - 1

    def degrade_factor(self, source: str, destination: str) -> float:
        """Product of the `[degrade] links` factors whose pattern fits this link or one of its ends."""
        factor = 1.0
        for pattern, value in self.cluster.degrade.links.items():
            names = (
                f"{source}->{destination}",
                f"{source}<->{destination}",
                f"{destination}<->{source}",
                source,
                destination,
            )
            if any(fnmatch.fnmatchcase(name, pattern) for name in names):
                self._degraded.add(pattern)
                factor *= value
        return factor

    def check_degrade(self) -> None:
        """Raise `ClusterError` for a `[degrade]` entry that names nothing of this job."""
        source = self.cluster.source
        for pattern, value in self.cluster.degrade.links.items():
            if pattern not in self._degraded:
                some = ", ".join(link.name for link in self.links[:: max(1, len(self.links) // 6)][:6])
                raise ClusterError(
                    f"{source}: degrade.links.{pattern} = {value}: no such link; links are named like {some}"
                )
        for key, numbers, limit in (
            ("gpus", self.cluster.degrade.gpus, self.nodes * self.gpus_per_node),
            ("hosts", self.cluster.degrade.hosts, self.nodes),
        ):
            for number, value in numbers.items():
                if number >= limit:
                    raise ClusterError(f"{source}: degrade.{key}.{number} = {value}: must be below {limit}")
        for i, flow in enumerate(self.cluster.degrade.background):
            if max(flow.source, flow.destination) >= self.nodes * self.gpus_per_node:
                raise ClusterError(
                    f"{source}: degrade.background[{i}] = {flow.source} to {flow.destination}: "
                    f"ranks must be below {self.nodes * self.gpus_per_node}"
                )
