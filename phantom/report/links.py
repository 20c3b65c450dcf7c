"""How much of the links' capacity the recorded steps used, by kind of link."""

from __future__ import annotations

import re
from dataclasses import dataclass

from phantom.results.run_summary import LinkKind
from phantom.timeline.recording import Recording


@dataclass(frozen=True)
class LinkShare:
    """One link over the counted recorded steps. Utilisations are shares of the capacity, 0 to 1."""

    name: str
    capacity_bytes_per_s: float
    bytes: float
    utilisation: float
    peak_utilisation: float

    @property
    def kind(self) -> str:
        """The name with its numbers left out, e.g. "node*/gpu*->node*/nvswitch"."""
        return re.sub(r"\d+", "*", self.name)


def link_shares(recording: Recording) -> list[LinkShare]:
    """Every link that carried something in the counted steps, the busiest first."""
    bounds = recording.counted_bounds_ps
    if bounds is None or bounds[1] <= bounds[0]:
        return []
    record, found = recording.links, []
    for link in record.links:
        carried = record.bytes_between(link, *bounds)
        if carried <= 0 or link.capacity_bytes_per_s <= 0:
            continue
        whole = link.capacity_bytes_per_s * (bounds[1] - bounds[0]) * 1e-12
        peak = record.peak_bytes_per_s(link, *bounds) / link.capacity_bytes_per_s
        found.append(LinkShare(link.name, link.capacity_bytes_per_s, carried, carried / whole, peak))
    return sorted(found, key=lambda share: (-share.utilisation, -share.peak_utilisation, share.name))


def by_kind(shares: list[LinkShare]) -> list[LinkKind]:
    """summary.json's `links`: one entry per kind of link, that with the busiest link first."""
    kinds: dict[str, list[LinkShare]] = {}
    for share in shares:
        kinds.setdefault(share.kind, []).append(share)
    return [
        LinkKind(
            kind=kind,
            links=len(members),
            capacity_bytes_per_s=members[0].capacity_bytes_per_s,
            bytes=sum(member.bytes for member in members),
            utilisation=sum(member.utilisation for member in members) / len(members),
            busiest=members[0].name,
            busiest_utilisation=members[0].utilisation,
            peak_utilisation=max(member.peak_utilisation for member in members),
        )
        for kind, members in kinds.items()
    ]
