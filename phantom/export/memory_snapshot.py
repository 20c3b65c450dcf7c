"""A rank's memory history in the format of PyTorch's memory viewer (https://pytorch.org/memory_viz).

The same layout as torch.cuda.memory._snapshot(): segments at the end, and the trace of events. What a block
holds stands where the viewer shows the stack. Segments are not recorded, so each live block is shown as its
own.
"""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

from phantom.report.memory import categories
from phantom.timeline.spool import RankSpool

PS_PER_US = 1_000_000


def _frames(category: str, phase: int) -> list[dict[str, Any]]:
    return [{"name": category, "filename": "backward" if phase else "forward", "line": 0}]


def snapshot(spool: RankSpool) -> dict[str, Any]:
    """The snapshot as PyTorch would pickle it; sizes in bytes, times in microseconds of virtual time."""
    memory = spool.memory
    names = categories(spool)
    devices = int(memory["device"].max()) + 1 if len(memory) else 1
    traces: list[list[dict[str, Any]]] = [[] for _ in range(devices)]
    live: dict[tuple[int, int], int] = {}
    rows = memory[["time_ps", "address", "bytes", "device", "phase"]].tolist()
    for index, (time_ps, address, size, device, phase) in enumerate(rows):
        birth = index
        if size > 0:
            live[device, address] = index
        else:
            birth = live.pop((device, address), index)
        event = {
            "addr": address,
            "size": abs(size),
            "stream": 0,
            "time_us": time_ps // PS_PER_US,
            "frames": _frames(names[birth], phase),
        }
        actions = ("alloc",) if size > 0 else ("free_requested", "free_completed")
        traces[device] += [{"action": action, **event} for action in actions]
    segments = [
        _segment(address, rows[birth][2], device, _frames(names[birth], rows[birth][4]))
        for (device, address), birth in sorted(live.items())
    ]
    return {
        "segments": segments,
        "device_traces": traces,
        "allocator_settings": {"PYTORCH_CUDA_ALLOC_CONF": "", "expandable_segments": False},
        "external_annotations": [],
    }


def _segment(address: int, size: int, device: int, frames: list[dict[str, Any]]) -> dict[str, Any]:
    block = {
        "address": address,
        "size": size,
        "requested_size": size,
        "state": "active_allocated",
        "frames": frames,
    }
    return {
        "device": device,
        "address": address,
        "total_size": size,
        "allocated_size": size,
        "active_size": size,
        "requested_size": size,
        "stream": 0,
        "segment_type": "large" if size > 1 << 20 else "small",
        "segment_pool_id": (0, 0),
        "is_expandable": False,
        "frames": [],
        "blocks": [block],
    }


def write_snapshot(spool: RankSpool, path: Path) -> Path:
    """Writes the pickle."""
    path.write_bytes(pickle.dumps(snapshot(spool)))
    return path
