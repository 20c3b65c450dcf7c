"""What a rank's device memory held at its peak."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from phantom.timeline.spool import RankSpool

PARAMETERS, GRADIENTS, OPTIMIZER_STATE = "parameters", "gradients", "optimizer state"
ACTIVATIONS, OTHER = "activations", "other"
CATEGORIES = (PARAMETERS, GRADIENTS, OPTIMIZER_STATE, ACTIVATIONS, OTHER)
_BACKWARD = 1


@dataclass(frozen=True)
class Holder:
    """One block that was live at the peak."""

    size_bytes: int
    category: str
    since_ps: int
    phase: str


@dataclass(frozen=True)
class Peak:
    """The highest allocation of one device. `by_category` has all CATEGORIES and adds up to it."""

    device: int
    time_ps: int
    allocated_bytes: int
    reserved_bytes: int
    by_category: dict[str, int]
    largest: tuple[Holder, ...]


def peak(spool: RankSpool, *, largest: int = 12) -> Peak | None:
    """The peak of the device that held most, None where nothing was allocated.

    Parameters, gradients and optimizer state are what the optimizer said after its steps. Of the rest, what
    was freed again later is an activation (or an input, a temporary); what never was, is other.
    """
    memory = spool.memory
    if len(memory) == 0:
        return None
    at = int(memory["allocated_bytes"].argmax())
    device = int(memory["device"][at])
    events = memory[["address", "bytes", "device"]].tolist()
    told: dict[int, str] = {}
    freed: set[int] = set()
    live: dict[tuple[int, int], int] = {}
    live_at_peak: list[int] = []
    tags = iter(spool.tags)
    tag = next(tags, None)
    for index, (address, size, where) in enumerate([*events, (0, 0, -1)]):
        while tag is not None and tag.at <= index:
            for held in tag.addresses.tolist():
                birth = live.get((where if where >= 0 else device, held))
                if birth is not None:
                    told[birth] = tag.category
            tag = next(tags, None)
        if size > 0:
            live[where, address] = index
        elif size < 0:
            birth = live.pop((where, address), None)
            if birth is not None:
                freed.add(birth)
        if index == at:
            live_at_peak = [birth for (held_on, _), birth in live.items() if held_on == device]
    holders = [
        Holder(
            int(memory["bytes"][birth]),
            told.get(birth, ACTIVATIONS if birth in freed else OTHER),
            int(memory["time_ps"][birth]),
            "backward" if memory["phase"][birth] == _BACKWARD else "forward",
        )
        for birth in live_at_peak
    ]
    by_category = dict.fromkeys(CATEGORIES, 0)
    for holder in holders:
        by_category[holder.category] = by_category.get(holder.category, 0) + holder.size_bytes
    # What was allocated before the recording began.
    by_category[OTHER] += int(memory["allocated_bytes"][at]) - sum(by_category.values())
    holders.sort(key=lambda holder: (-holder.size_bytes, holder.since_ps))
    return Peak(
        device,
        int(memory["time_ps"][at]),
        int(memory["allocated_bytes"][at]),
        int(memory["reserved_bytes"][: at + 1][memory["device"][: at + 1] == device].max()),
        by_category,
        tuple(holders[:largest]),
    )


def peaks(ranks: dict[int, RankSpool], *, limit: int = 16) -> dict[int, Peak]:
    """Peaks by rank: of the `limit` ranks that held most."""
    highest = {rank: int(np.max(s.memory["allocated_bytes"], initial=0)) for rank, s in ranks.items()}
    chosen = sorted(ranks, key=lambda rank: (-highest[rank], rank))[:limit]
    found = {rank: peak(ranks[rank]) for rank in sorted(chosen)}
    return {rank: value for rank, value in found.items() if value is not None}
