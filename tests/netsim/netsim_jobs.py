"""Random operations for property tests, and a plain from-scratch simulator to compare with."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from hypothesis import strategies as st

from netsim.cluster import parse_cluster
from netsim.network import Network
from netsim.operation import Operation
from netsim.sharing.maxmin import solve_plain

NODES, GPUS = 3, 4
WORLD = NODES * GPUS
CLUSTERS = {
    "rails": {"kind": "rail-fat-tree", "nodes_per_leaf": 2, "spines": 2, "oversubscription": 2.0},
    "ecmp": {"kind": "fat-tree", "nodes_per_leaf": 1, "spines": 3, "routing": "ecmp"},
    "torus": {"kind": "torus", "dimensions": [3]},
}


@dataclass(frozen=True)
class Start:
    """An operation with its number and start."""

    op_id: int
    start_ps: int
    op: Operation


def network(fabric: str) -> Network:
    """Three servers of four A100 on one of the fabrics."""
    spec = parse_cluster(
        {
            "name": fabric,
            "gpu": {"preset": "a100-sxm-80gb"},
            "node": {
                "gpus": GPUS,
                "nics": GPUS,
                "nic_bandwidth_bytes_per_s": 25e9,
                "nvlink": {"kind": "switch", "links": 12, "link_bandwidth_bytes_per_s": 25e9},
            },
            "fabric": CLUSTERS[fabric],
        },
        file="test",
    )
    return Network(spec, nodes=NODES, gpus_per_node=GPUS, environment={}, seed=0)


@st.composite
def operations(draw: st.DrawFn) -> Operation:
    kind = draw(
        st.sampled_from(
            [
                "all_reduce",
                "all_gather",
                "reduce_scatter",
                "broadcast",
                "all_to_all",
                "uneven",
                "p2p",
                "p2p",
                "transfer",
                "gather",
            ]
        )
    )
    size = draw(st.sampled_from([0, 4096, 1 << 20, (1 << 22) + 3, 1 << 24, 1 << 26, 1 << 26]))
    if kind == "p2p":
        source, destination = draw(st.permutations(range(WORLD)))[:2]
        return Operation(kind="p2p", source=source, destination=destination, size_bytes=size)
    if kind == "transfer":
        rank = draw(st.integers(0, WORLD - 1))
        direction = draw(st.sampled_from(["h2d", "d2h"]))
        return Operation(kind="transfer", ranks=(rank,), direction=direction, size_bytes=size)
    stride = draw(st.sampled_from([1, 1, 2, 4]))
    first = draw(st.integers(0, stride - 1))
    ranks = tuple(range(first, WORLD, stride))
    if stride == 1:
        ranks = ranks[: draw(st.sampled_from([2, 4, 6, 12]))]
    if kind == "uneven":
        row = [draw(st.integers(0, 5)) << 18 for _ in ranks]
        counts = tuple(tuple(row[(i + j) % len(row)] for j in range(len(ranks))) for i in range(len(ranks)))
        return Operation(kind="all_to_all", ranks=ranks, size_bytes=sum(row), send_counts=counts)
    return Operation(kind=kind, ranks=ranks, size_bytes=size, root=0)


@st.composite
def jobs(draw: st.DrawFn, largest: int = 10) -> list[Start]:
    """Operations at times that often coincide, in order of start."""
    times = st.sampled_from(
        [0, 0, 40_000_000, 40_000_000, 90_000_000, 90_000_000, 300_000_000, 1_000_000_000]
    )
    chosen = draw(st.lists(st.tuples(times, operations()), min_size=1, max_size=largest))
    chosen.sort(key=lambda item: item[0])
    return [Start(i + 1, time, op) for i, (time, op) in enumerate(chosen)]


def run(net: Network, job: list[Start], *, until: int = 1 << 60) -> list[tuple[int, int]]:
    """Start everything in time order, event by event; return the completions."""
    done: list[tuple[int, int]] = []
    waiting = sorted(job, key=lambda s: s.start_ps)
    while True:
        event = net.next_event_ps()
        start = waiting[0].start_ps if waiting else None
        if event is None and start is None:
            return done
        if start is None or (event is not None and event <= start):
            assert event is not None
            if event > until:
                return done
            done += net.advance(event)
        else:
            if start > until:
                return done
            item = waiting.pop(0)
            net.start(item.op_id, item.op, item.start_ps)


def reference(net: Network, job: list[Start]) -> dict[int, int]:
    """End times by solving everything from scratch at every event, with the plain solver."""
    flows = []  # [op, begin, remaining, row of links and demands, weight, level cap, rate]
    ends: dict[int, float] = {}
    for item in job:
        for part in net.planner.plan(item.op):
            begin = item.start_ps + part.latency_ps
            ends[item.op_id] = max(ends.get(item.op_id, 0.0), float(begin))
            if part.shape is None:
                continue
            shape = part.shape
            for f in range(shape.flows):
                span = slice(int(shape.starts[f]), int(shape.starts[f + 1]))
                row = list(zip(shape.links[span].tolist(), shape.demand[span].tolist()))
                if part.sizes[f] > 0:
                    flows.append(
                        [
                            item.op_id,
                            float(begin),
                            float(part.sizes[f]),
                            row,
                            float(shape.weights[f]),
                            float(shape.level_caps[f]),
                        ]
                    )
    now = 0.0
    capacity = np.array(net.topology.capacity)
    while flows:
        active = [f for f in flows if f[1] <= now]
        following = min((f[1] for f in flows if f[1] > now), default=math.inf)
        if not active:
            now = following
            continue
        rows = np.array([i for i, f in enumerate(active) for _ in f[3]])
        columns = np.array([link for f in active for link, _ in f[3]])
        demand = np.array([d for f in active for _, d in f[3]])
        used, local = np.unique(columns, return_inverse=True)
        level = solve_plain(rows, local, demand, np.array([f[5] for f in active]), capacity[used])
        rates = [float(v) * f[4] for v, f in zip(level, active)]
        finish = min(now + f[2] / r * 1e12 for f, r in zip(active, rates))
        step = min(finish, following)
        for f, r in zip(active, rates):
            f[2] -= r * (step - now) * 1e-12
        now = step
        for f in [f for f in active if f[2] <= 1e-3]:
            ends[f[0]] = max(ends[f[0]], now)
            flows.remove(f)
    return {op: math.ceil(end) for op, end in ends.items()}
