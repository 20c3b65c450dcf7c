"""Makes finished runs for the tests: a small list-scheduled job, written in the recorder's own format."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgpack
import numpy as np

from phantom.timeline.collectives import Collective, CollectiveLog, Group
from phantom.timeline.links import LinkCurve, LinkRecord
from phantom.timeline.spool import MEMORY_ROW, SPAN_ROW, WAIT_ROW

US = 1_000_000  # ps
COMMUNICATION = 0x80000000
COMPUTE_STREAM, COMM_STREAM = 0, 7


@dataclass(frozen=True)
class Layer:
    """One piece of a rank's step: host work, a kernel, perhaps a collective that overlaps what follows."""

    host_us: int
    kernel: int
    kernel_us: int
    collective_bytes: int = 0
    wait: bool = False


@dataclass
class Rank:
    """A rank while it is being simulated. Times in ps."""

    number: int
    clock: int = 0
    compute: int = 0
    network: int = 0
    node: int = 0
    begin: int = 0
    spans: list[tuple[int, int, int, int, int]] = field(default_factory=list)
    waits: list[tuple[int, int, int, int]] = field(default_factory=list)
    steps: list[tuple[int, ...]] = field(default_factory=list)
    memory: list[tuple[int, ...]] = field(default_factory=list)
    allocated: int = 0
    tags: list[tuple[int, str, list[int]]] = field(default_factory=list)

    def allocate(self, address: int, size: int, *, phase: int = 0) -> None:
        self.allocated += size
        reserved = max(self.allocated, self.memory[-1][4] if self.memory else 0)
        self.memory.append((self.clock, address, size, self.allocated, reserved, 0, phase))

    def free(self, address: int, size: int, *, phase: int = 0) -> None:
        self.allocated -= size
        self.memory.append((self.clock, address, -size, self.allocated, self.memory[-1][4], 0, phase))


KERNELS = [
    ("aten::mm", "gemm", "predicted"),
    ("aten::add", "elementwise", "measured"),
    ("aten::_scaled_dot_product_flash_attention", "attention", "predicted"),
    ("all_reduce", "communication", "network"),
]
ALL_REDUCE = 3


def _union(intervals: list[tuple[int, int]]) -> int:
    """Length of a union, by counting open intervals at every border (another way than the recorder's)."""
    borders = sorted([(start, 1) for start, _ in intervals] + [(end, -1) for _, end in intervals])
    length = depth = 0
    previous = 0
    for at, change in borders:
        if depth > 0:
            length += at - previous
        depth += change
        previous = at
    return length


def simulate(
    layers: list[Layer], *, ranks: int, steps: int, bytes_per_us: int = 100_000, skew_us: int = 3
) -> tuple[list[Rank], list[Collective]]:
    """Runs the layers `steps` times on `ranks` ranks; rank r's host is `skew_us` x r slower per layer."""
    states = [Rank(number) for number in range(ranks)]
    log: list[Collective] = []
    for state in states:
        state.allocate(0x1000, 64 << 20)
    for index in range(steps):
        for layer in layers:
            posts = []
            for state in states:
                state.clock += (layer.host_us + skew_us * state.number) * US
                state.allocate(0x100000 + len(state.spans) * 0x1000 + 1, 1 << 20)
                start = max(state.compute, state.clock + 2 * US)
                state.compute = start + layer.kernel_us * US
                state.spans.append((start, state.compute, 0, COMPUTE_STREAM, layer.kernel))
                if layer.collective_bytes:
                    ready = max(state.network, state.compute, state.clock + 2 * US)
                    state.node += 1
                    posts.append((state, ready))
            if posts:
                start = max(ready for _, ready in posts)
                end = start + layer.collective_bytes * US // bytes_per_us + 5 * US
                members = tuple((state.number, state.node) for state, _ in posts)
                size = layer.collective_bytes
                log.append(
                    Collective(
                        "world", len(log), "all_reduce", size, "float32", members, start, end,
                        "ring", "simple", 16, 2 * (ranks - 1) / ranks,
                    )
                )  # fmt: skip
                for state, ready in posts:
                    state.network = end
                    state.spans.append((ready, end, state.node, COMM_STREAM, ALL_REDUCE | COMMUNICATION))
                    if layer.wait:
                        state.compute = max(state.compute, end)
        for state in states:
            end = max(state.compute, state.network)
            if end > state.clock:
                state.waits.append((state.clock, end, 0, 0))
                state.clock = end
            begin = state.steps[-1][2] if state.steps else min(span[0] for span in state.spans)
            clipped = [
                (max(s, begin), min(e, end), k) for s, e, _, _, k in state.spans if e > begin and s < end
            ]
            compute = _union([(s, e) for s, e, k in clipped if not k & COMMUNICATION])
            busy = _union([(s, e) for s, e, _ in clipped])
            state.steps.append((index, begin, end, compute, busy - compute, end - begin - busy))
            state.tags.append((len(state.memory), "parameters", [0x1000]))
            live: dict[int, int] = {}
            for _, address, size, *_ in state.memory:
                live[address] = size
                if size < 0:
                    del live[address]
            for address, size in live.items():
                if address != 0x1000:
                    state.free(address, size, phase=1)
    return states, log


def _pack_rank(state: Rank) -> bytes:
    def rows(name: str, values: list[Any], dtype: np.dtype[Any]) -> list[Any]:
        return [name, np.array(values, dtype=dtype).tobytes()]

    records: list[list[Any]] = [["header", {"version": 1, "rank": state.number}]]
    records += [["kernel", number, *kernel] for number, kernel in enumerate(KERNELS)]
    records.append(["why", 0, "Stream.synchronize at train.py:12"])
    records.append(rows("spans", state.spans, SPAN_ROW))
    records.append(rows("waits", state.waits, WAIT_ROW))
    records += [["step", *step] for step in state.steps]
    at = 0
    for until, category, addresses in state.tags:
        records.append(rows("memory", state.memory[at:until], MEMORY_ROW))
        records.append(["tag", category, np.array(addresses, dtype="<u8").tobytes()])
        at = until
    records.append(rows("memory", state.memory[at:], MEMORY_ROW))
    return b"".join(msgpack.packb(record) for record in records)


def summary_of(states: list[Rank], log: list[Collective]) -> dict[str, Any]:
    """summary.json as docs/results.md has it."""
    ends = [max(state.steps[i][2] for state in states) for i in range(len(states[0].steps))]
    first = min(state.steps[0][1] for state in states)
    virtual = [(end - begin) * 1e-12 for begin, end in zip([first, *ends[:-1]], ends)]
    counted = range(1 if len(ends) > 1 else 0, len(ends))
    ranks = []
    for state in states:
        sums = [sum(state.steps[i][column] for i in counted) * 1e-12 for column in (3, 4, 5)]
        ranks.append(
            {
                "rank": state.number,
                "steps_virtual_s": [(s[2] - s[1]) * 1e-12 for s in state.steps],
                "compute_s": sums[0],
                "exposed_communication_s": sums[1],
                "idle_s": sums[2],
                "peak_allocated_bytes": max(row[3] for row in state.memory),
                "peak_reserved_bytes": max(row[4] for row in state.memory),
                "ops": len(state.spans),
                "oom": False,
            }
        )
    chosen = sorted(virtual[1:] or virtual)
    collectives = [
        {
            "kind": c.kind, "ranks": len(c.members), "bytes": c.size_bytes, "count": 1,
            "virtual_s": (c.end_ps - c.start_ps) * 1e-12, "algorithm": c.algorithm, "protocol": c.protocol,
            "bus_bandwidth_bytes_per_s": c.bus_bandwidth_bytes_per_s, "bus_limit_bytes_per_s": 450e9,
            "channels": c.channels,
        }
        for c in log[:4]
    ]  # fmt: skip
    return {
        "schema": 1,
        "command": ["python", "train.py", "--layers", "4"],
        "cluster": "h100-dgx",
        "world_size": len(states),
        "nodes": 1,
        "status": "ok",
        "steps": [{"index": i, "virtual_s": value} for i, value in enumerate(virtual)],
        "step_virtual_s": {
            "median": chosen[len(chosen) // 2],
            "mean": sum(chosen) / len(chosen),
            "min": chosen[0],
            "max": chosen[-1],
        },
        "ranks": ranks,
        "coverage": {"measured": 0.25, "predicted": 0.74, "unpriced": 0.01},
        "unpriced_ops": [{"op": "aten::strange", "count": 3}],
        "unknown_value_reads": [{"where": "train.py:33", "count": 2}],
        "collectives": collectives,
        "gpu": {"name": "NVIDIA H100 80GB HBM3", "memory_bytes": 85_000_000_000, "peak_flops": {}},
        "kernels": [
            {"class": klass, "count": 3 * len(states), "virtual_s": 0.1 * (number + 1)}
            for number, (_, klass, _) in enumerate(KERNELS)
        ],
        "top_kernels": [
            {"name": name, "class": klass, "source": source, "count": 9, "virtual_s": 0.1 * (number + 1)}
            for number, (name, klass, source) in enumerate(KERNELS)
        ],
        "wall_s": 3.2,
        "simulator": {"rollbacks": 1, "events": 1234, "peak_rss_bytes": 123 << 20},
        "warnings": ["the learning-rate schedule read a loss that was never computed (train.py:33)"],
    }


def links_of(ranks: int, log: list[Collective], *, bin_ps: int = 10 * US) -> LinkRecord:
    """One link per GPU that carries a ring's bytes of every collective, evenly over its time."""
    end_ps = max((c.end_ps for c in log), default=0)
    carried = np.zeros(end_ps // bin_ps + 1)
    for c in log:
        edges = np.arange(len(carried) + 1) * bin_ps
        inside = np.clip(np.minimum(edges[1:], c.end_ps) - np.maximum(edges[:-1], c.start_ps), 0, None)
        carried += c.size_bytes * c.bus_factor * inside / (c.end_ps - c.start_ps)
    curves = [LinkCurve(f"node0/gpu{rank}->node0/nvswitch", 450e9, carried) for rank in range(ranks)]
    return LinkRecord(0, bin_ps, tuple(curves))


LAYERS = [
    Layer(8, 0, 40),
    Layer(5, 1, 10),
    Layer(12, 2, 30, collective_bytes=4_000_000),
    Layer(8, 0, 50, collective_bytes=1_000_000),
    Layer(4, 1, 20, collective_bytes=500_000, wait=True),
]


def write_run(
    folder: Path, *, ranks: int = 4, steps: int = 3, layers: list[Layer] | None = None, **options: Any
) -> tuple[list[Rank], list[Collective]]:
    """Writes a run folder as `phantom run` leaves it; returns what the file was made from."""
    states, log = simulate(layers or LAYERS, ranks=ranks, steps=steps, **options)
    spool = folder / "spool"
    spool.mkdir(parents=True)
    for state in states:
        (spool / f"rank-{state.number}.msgpack").write_bytes(_pack_rank(state))
    writer = CollectiveLog(spool / "collectives.msgpack")
    writer.group(Group("world", "default_pg", tuple(range(ranks)), "nccl"))
    for collective in log:
        writer.add(collective)
    writer.links(links_of(ranks, log))
    writer.close()
    (folder / "summary.json").write_text(json.dumps(summary_of(states, log)))
    return states, log
