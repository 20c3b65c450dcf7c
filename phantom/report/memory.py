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


def categories(spool: RankSpool) -> list[str]:
    """What each memory event's block holds, by number of the event that allocated it ("" for others).

    Parameters, gradients and optimizer state are what the optimizer said after its steps. Of the rest, what
    was freed again while the steps went on, or was allocated after the first step, is an activation (or an
    input, a temporary); what came before and stayed is other: buffers, averaged weights, workspaces,
    communication buckets. Where memory ran out before a step was complete, every parameter was named at that
    moment, and the rest counts as activations.
    """
    stayed_ps = _stayed_ps(spool)
    first_step_end = spool.tags[0].at if spool.tags else len(spool.memory)
    if spool.tags and not spool.steps:
        first_step_end = 0
    events = spool.memory[["device", "address", "bytes", "time_ps"]].tolist()
    found = [""] * len(events)
    live: dict[tuple[int, int], int] = {}
    named: dict[int, str] = {}
    # A rank uses one device as a rule; a tag names the block at that address, wherever it lives.
    by_address: dict[int, int] = {}
    at = 0
    for tag in [*spool.tags, None]:
        until = len(events) if tag is None else tag.at
        for index in range(at, until):
            device, address, size, time_ps = events[index]
            if size > 0:
                live[device, address] = by_address[address] = index
                found[index] = OTHER if index < first_step_end else ACTIVATIONS
            else:
                birth = live.pop((device, address), None)
                if birth is not None and (birth >= first_step_end or time_ps < stayed_ps):
                    found[birth] = ACTIVATIONS
        at = max(at, until)
        if tag is not None:
            for address in tag.addresses.tolist():
                if address in by_address:
                    named.setdefault(by_address[address], tag.category)
    for index, category in named.items():
        found[index] = category
    return found


def _stayed_ps(spool: RankSpool) -> float:
    """What is freed from this time on, and was there in the first step, was no activation of it.

    A script lets go of a step's last tensors in the next one at the latest, and of all the others at its end.
    The host runs ahead of its device, whose times the steps are: of two steps the end of the second is taken.
    """
    if len(spool.steps) < 2:
        return float("inf")
    return spool.steps[-1].begin_ps if len(spool.steps) > 2 else spool.steps[-1].end_ps


def peak(spool: RankSpool, *, largest: int = 12) -> Peak | None:
    """The peak of the device that held most, None where nothing was allocated."""
    memory = spool.memory
    if len(memory) == 0:
        return None
    at = int(memory["allocated_bytes"].argmax())
    device = int(memory["device"][at])
    live: dict[int, int] = {}
    for index, (where, address, size) in enumerate(memory[["device", "address", "bytes"]][: at + 1].tolist()):
        if where == device and size > 0:
            live[address] = index
        elif where == device:
            live.pop(address, None)
    names = categories(spool)
    holders = [
        Holder(
            int(memory["bytes"][birth]),
            names[birth],
            int(memory["time_ps"][birth]),
            "backward" if memory["phase"][birth] == _BACKWARD else "forward",
        )
        for birth in live.values()
    ]
    by_category = dict.fromkeys(CATEGORIES, 0)
    for holder in holders:
        by_category[holder.category] = by_category.get(holder.category, 0) + holder.size_bytes
    # What was allocated before the recording began.
    by_category[OTHER] += int(memory["allocated_bytes"][at]) - sum(by_category.values())
    holders.sort(key=lambda holder: (-holder.size_bytes, holder.since_ps))
    before = memory[: at + 1]
    return Peak(
        device,
        int(memory["time_ps"][at]),
        int(memory["allocated_bytes"][at]),
        int(before["reserved_bytes"][before["device"] == device].max()),
        by_category,
        tuple(holders[:largest]),
    )


def peaks(ranks: dict[int, RankSpool], *, limit: int = 16) -> dict[int, Peak]:
    """Peaks by rank: of the `limit` ranks that held most."""
    highest = {rank: int(np.max(s.memory["allocated_bytes"], initial=0)) for rank, s in ranks.items()}
    chosen = sorted(ranks, key=lambda rank: (-highest[rank], rank))[:limit]
    found = {rank: peak(ranks[rank]) for rank in sorted(chosen)}
    return {rank: value for rank, value in found.items() if value is not None}
