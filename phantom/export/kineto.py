"""PyTorch profiler traces (Chrome JSON) of the recorded ranks, as Holistic Trace Analysis reads them.

Kernels carry the names that HTA goes by: NCCL's kernels are "ncclDevKernel_...", so that it tells
communication from computation. Host operators are not recorded, so there are none; each launch is shown as a
runtime call.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

from phantom.kernels.request.dtypes import item_bytes
from phantom.results.run_summary import GpuSummary
from phantom.timeline.collectives import Collective
from phantom.timeline.recording import Recording

_NCCL = {
    "all_reduce": "AllReduce_Sum",
    "reduce": "Reduce_Sum",
    "all_gather": "AllGather",
    "reduce_scatter": "ReduceScatter_Sum",
    "broadcast": "Broadcast",
    "all_to_all": "SendRecv",
    "send_recv": "SendRecv",
    "gather": "SendRecv",
    "scatter": "SendRecv",
    "barrier": "AllReduce_Sum",
}
_HOST_TID, _PS_PER_US = 1, 1e6


def write_kineto(recording: Recording, folder: Path, *, steps: tuple[int, int] | None = None) -> list[Path]:
    """Writes FOLDER/rank-RANK.json.gz for each recorded rank.

    Raises ValueError where nothing was recorded.
    """
    indices = [i for i in recording.step_indices if steps is None or steps[0] <= i < steps[1]]
    if not indices:
        raise ValueError(f"{recording.folder}: none of these steps was recorded ({recording.extent})")
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for rank in recording.ranks:
        path = folder / f"rank-{rank}.json.gz"
        with gzip.open(path, "wt", encoding="utf-8", compresslevel=3) as file:
            json.dump(_trace(recording, rank, indices), file)
        paths.append(path)
    return paths


def _trace(recording: Recording, rank: int, indices: list[int]) -> dict[str, Any]:
    summary = recording.summary
    spool = recording.ranks[rank]
    steps = [step for step in spool.steps if step.index in indices]
    begin_ps, end_ps = steps[0].begin_ps, steps[-1].end_ps
    events: list[dict[str, Any]] = []
    for step in steps:
        name = f"ProfilerStep#{step.index}"
        events.append(_event("user_annotation", name, rank, _HOST_TID, step.begin_ps, step.end_ps, {}))
    rows = zip(spool.spans.tolist(), spool.communication.tolist())
    for correlation, ((start_ps, stop_ps, node, stream, kernel), network) in enumerate(rows, start=1):
        if start_ps < begin_ps or stop_ps > end_ps:
            continue
        name = spool.kernels[kernel].name
        arguments: dict[str, Any] = {"correlation": correlation, "External id": correlation}
        launch = _event("cuda_runtime", "cudaLaunchKernel", rank, _HOST_TID, start_ps, start_ps, arguments)
        events.append(launch)
        device, number = divmod(stream, 65536)
        arguments = {**arguments, "stream": number, "device": device, "class": spool.kernels[kernel].klass}
        for c in recording.collectives_of.get((rank, node), []) if network else []:
            if c.kind in _NCCL:
                form = f"{c.algorithm or 'ring'}_{c.protocol or 'simple'}".upper()
                name = f"ncclDevKernel_{_NCCL[c.kind]}_{form}(ncclDevKernelArgsStorage<4096ul>)"
                arguments["Collective name"] = c.kind
                arguments["In msg nelems"] = _sent_bytes(c, rank) // item_bytes(c.dtype)
                arguments["dtype"] = c.dtype
                arguments["Group size"] = len(c.members)
                arguments["Process Group Name"] = c.comm
        events.append(_event("kernel", name, device, number, start_ps, stop_ps, arguments))
    gpu = summary.gpu or GpuSummary()
    return {
        "schemaVersion": 1,
        "deviceProperties": [{"id": 0, "name": gpu.name, "totalGlobalMem": gpu.memory_bytes}],
        "distributedInfo": {"backend": "nccl", "rank": rank, "world_size": summary.world_size},
        "traceEvents": events,
    }


def _sent_bytes(c: Collective, rank: int) -> int:
    """NCCL's message size, in an uneven all_to_all the rank's own send buffer."""
    return c.size_bytes if c.send_counts is None else sum(c.send_counts[c.ranks.index(rank)])


def _event(
    category: str, name: str, pid: int, tid: int, start_ps: int, end_ps: int, arguments: dict[str, Any]
) -> dict[str, Any]:
    return {
        "ph": "X",
        "cat": category,
        "name": name,
        "pid": pid,
        "tid": tid,
        "ts": start_ps / _PS_PER_US,
        "dur": (end_ps - start_ps) / _PS_PER_US,
        "args": arguments,
    }
