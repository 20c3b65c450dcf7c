"""What holds memory, and what would fit: the report of an out-of-memory error and of --memory-report."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from netsim.cluster import gpu_preset, gpu_presets
from phantom.report.memory import (
    ACTIVATIONS,
    CATEGORIES,
    GRADIENTS,
    OPTIMIZER_STATE,
    PARAMETERS,
    Peak,
    peaks,
)
from phantom.results.run_summary import Summary
from phantom.terminal.units import many, seconds, share, size
from phantom.timeline.recording import Recording

RANKS_SHOWN = 4


@dataclass(frozen=True)
class Shortage:
    """An allocation that failed. Sizes in bytes; `holders` by category add up to `allocated_bytes`."""

    rank: int
    time_s: float
    requested_bytes: int
    allocated_bytes: int
    reserved_bytes: int
    capacity_bytes: int
    holders: dict[str, int]

    @property
    def missing_bytes(self) -> int:
        """How much did not fit, were nothing lost to fragmentation; 0 or less: it would have fitted."""
        return self.allocated_bytes + self.requested_bytes - self.capacity_bytes


def shortages(summary: Summary) -> list[Shortage]:
    """The OOM faults that ranks reported, in order of time."""
    found = [
        Shortage(
            rank=fault.rank,
            time_s=fault.now_ps * 1e-12,
            requested_bytes=fault.requested_bytes,
            allocated_bytes=fault.allocated_bytes,
            reserved_bytes=fault.reserved_bytes,
            capacity_bytes=fault.capacity_bytes,
            holders=fault.holders,
        )
        for fault in summary.faults
        if fault.kind == "oom"
    ]
    return sorted(found, key=lambda shortage: (shortage.time_s, shortage.rank))


def remedies(shortage: Shortage, *, world_size: int) -> list[str]:
    """What would make it fit, nearest first; each says how much it gives."""
    missing = shortage.missing_bytes
    held = shortage.holders
    activations = held.get(ACTIVATIONS, 0)
    if missing <= 0:
        cached = shortage.reserved_bytes - shortage.allocated_bytes
        found = [
            f"fragmentation: {size(cached)} is reserved but unallocated; "
            "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True would make it usable"
        ]
        if activations > shortage.requested_bytes:
            found.append(
                f"fewer activations ({size(activations)}): a smaller micro-batch or activation checkpointing"
            )
        return found
    found = []
    if activations > missing:
        found.append(
            f"activations ({size(activations)}) would have to shrink by {share(missing / activations)}: "
            "a smaller micro-batch or activation checkpointing"
        )
    if world_size > 1:
        found += _sharding(held, missing, world_size)
    needed = shortage.capacity_bytes + missing
    for name, memory_bytes in _larger_gpus(needed):
        found.append(f"a GPU with {size(memory_bytes)} ({name}) would hold it")
    return found or [
        f"no single remedy gives the missing {size(missing)}: combine a smaller micro-batch, activation "
        "checkpointing and sharding, or split the model over more ranks"
    ]


def _sharding(held: Mapping[str, int], missing: int, world_size: int) -> list[str]:
    """The first ZeRO stage (arXiv:1910.02054) that gives enough, if nothing is sharded yet."""
    stages = (
        ("the optimizer state (ZeRO-1)", (OPTIMIZER_STATE,)),
        ("gradients too (ZeRO-2)", (OPTIMIZER_STATE, GRADIENTS)),
        ("parameters too (ZeRO-3, FSDP)", (OPTIMIZER_STATE, GRADIENTS, PARAMETERS)),
    )
    for name, categories in stages:
        saved = sum(held.get(category, 0) for category in categories) * (world_size - 1) // world_size
        if saved >= missing:
            return [
                f"sharding {name} over {world_size} ranks saves {size(saved)}, if they are not sharded yet"
            ]
    return []


def _larger_gpus(needed: int) -> list[tuple[str, int]]:
    """The smallest preset whose memory, less what it reserves, is enough."""
    presets = [(name, gpu_preset(name)) for name in gpu_presets()]
    fitting = [
        (gpu.memory_bytes, name) for name, gpu in presets if gpu.memory_bytes - gpu.reserved_bytes >= needed
    ]
    return [(name, memory_bytes) for memory_bytes, name in sorted(fitting)[:1]]


def _holders(held: Mapping[str, int], whole: int) -> list[str]:
    names = [*CATEGORIES, *sorted(set(held) - set(CATEGORIES))]
    return [
        f"    {name:<16} {size(held[name]):>12}  {share(held[name] / whole if whole else 0):>6}"
        for name in names
        if held.get(name)
    ]


def oom_report(summary: Summary) -> str:
    """Which rank, when, what was asked, what holds memory, what would fit; empty where no rank had an OOM."""
    found = shortages(summary)
    if not found:
        return ""
    first = found[0]
    others = len({shortage.rank for shortage in found}) - 1
    lines = [
        f"rank {first.rank} ran out of memory at {seconds(first.time_s)} of virtual time"
        + (f" ({many(others, 'more rank')} after it)" if others else ""),
        f"  asked for {size(first.requested_bytes)}; allocated {size(first.allocated_bytes)}, reserved "
        f"{size(first.reserved_bytes)} of {size(first.capacity_bytes)} usable",
    ]
    if first.missing_bytes > 0:
        lines.append(f"  {size(first.missing_bytes)} too much")
    lines += ["  held by", *_holders(first.holders, first.allocated_bytes), "  what would fit"]
    lines += [f"    - {text}" for text in remedies(first, world_size=summary.world_size)]
    if not summary.steps:
        lines.append(
            "  no step was complete: what would fit is said of this allocation; what the rest of the step "
            "needs (activations, gradients, optimizer state) is not known yet"
        )
    return "\n".join(lines)


def _peak_lines(rank: int, peak: Peak, capacity: int | None) -> list[str]:
    used = f" ({share(peak.reserved_bytes / capacity)} of the GPU reserved)" if capacity else ""
    head = (
        f"rank {rank}: peak {size(peak.allocated_bytes)} allocated, {size(peak.reserved_bytes)} "
        f"reserved{used} at {seconds(peak.time_ps * 1e-12)}"
    )
    lines = [head, *_holders(peak.by_category, peak.allocated_bytes)]
    blocks = [f"{size(holder.size_bytes)} {holder.category}" for holder in peak.largest[:5]]
    return [*lines, f"    largest blocks: {', '.join(blocks)}"]


def memory_report(recording: Recording) -> str:
    """The report of an OOM if there was one, and the peaks of the ranks that held most."""
    parts = [text] if (text := oom_report(recording.summary)) else []
    capacity = recording.summary.memory_bytes
    found = peaks(recording.ranks, limit=RANKS_SHOWN)
    ordered = sorted(found, key=lambda rank: (-found[rank].allocated_bytes, rank))
    parts += ["\n".join(_peak_lines(rank, found[rank], capacity)) for rank in ordered]
    return "\n\n".join(parts) or "no rank recorded its memory"
