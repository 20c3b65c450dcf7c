"""Weighted, capped max-min fair rates.

A flow's level is its rate per fairness weight; every link gives all its flows the same level until it is
full. A flow is final when it reaches its cap or the lowest level among its links. Each round finishes all
*local* bottlenecks: links whose level is the lowest one on every path through them, which gives the same
answer as filling them one by one.
"""

from __future__ import annotations

import numpy as np

from netsim.parts import Floats, Ints

TOLERANCE = 1e-12


def solve(rows: Ints, columns: Ints, demand: Floats, level_caps: Floats, capacity: Floats) -> Floats:
    """Return every flow's level.

    `rows[e]`, `columns[e]`, `demand[e]`: flow, link and load times weight of incidence e, rows ascending,
    every flow at least once; links are numbered 0..len(capacity) - 1. `level_caps` may be infinite where a
    link bounds the flow.
    """
    flows, links = len(level_caps), len(capacity)
    level = np.zeros(flows)
    residual = capacity.astype(np.float64, copy=True)
    live = np.arange(flows)
    counts = np.bincount(rows, minlength=flows)
    caps = level_caps
    while True:
        total = np.bincount(columns, weights=demand, minlength=links)
        share = np.full(links, np.inf)
        np.divide(residual, total, out=share, where=total > 0)
        on_path = share[columns]
        starts = np.concatenate(([0], np.cumsum(counts)[:-1]))
        target = np.minimum(np.minimum.reduceat(on_path, starts), caps)
        entry_target = np.repeat(target, counts)
        # A link is a local bottleneck unless one of its flows is bound lower elsewhere.
        lower = entry_target < on_path * (1.0 - TOLERANCE)
        blocked = np.zeros(links, dtype=bool)
        blocked[columns[lower]] = True
        at_bottleneck = ~(lower | blocked[columns])
        done = np.logical_or.reduceat(at_bottleneck, starts) | (target >= caps)
        level[live[done]] = target[done]
        if done.all():
            return level
        closing = np.repeat(done, counts)
        residual -= np.bincount(columns[closing], weights=(demand * entry_target)[closing], minlength=links)
        np.maximum(residual, 0.0, out=residual)
        keep, open_flows = ~closing, ~done
        columns, demand = columns[keep], demand[keep]
        live, counts, caps = live[open_flows], counts[open_flows], caps[open_flows]


def solve_plain(rows: Ints, columns: Ints, demand: Floats, level_caps: Floats, capacity: Floats) -> Floats:
    """Progressive filling in plain Python, one bottleneck at a time: the reference that tests and
    benchmarks use.
    """
    flows = len(level_caps)
    on_link: list[list[tuple[int, float]]] = [[] for _ in capacity]
    paths: list[list[tuple[int, float]]] = [[] for _ in range(flows)]
    for r, c, d in zip(rows.tolist(), columns.tolist(), demand.tolist()):
        on_link[c].append((r, d))
        paths[r].append((c, d))
    level = [0.0] * flows
    residual = capacity.tolist()
    total = [sum(d for _, d in members) for members in on_link]
    count = [len(members) for members in on_link]
    by_cap = sorted(range(flows), key=level_caps.tolist().__getitem__, reverse=True)
    caps = level_caps.tolist()
    waiting = set(range(flows))
    while waiting:
        while by_cap[-1] not in waiting:
            by_cap.pop()
        best, best_link = caps[by_cap[-1]], -1
        for link, members in enumerate(count):
            if members and residual[link] < best * total[link]:
                best, best_link = residual[link] / total[link], link
        frozen = [by_cap[-1]] if best_link < 0 else [f for f, _ in on_link[best_link] if f in waiting]
        for f in frozen:
            level[f] = best
            waiting.discard(f)
            for link, d in paths[f]:
                residual[link] = max(0.0, residual[link] - d * best)
                total[link] -= d
                count[link] -= 1
    return np.array(level)


def violations(
    rows: Ints,
    columns: Ints,
    demand: Floats,
    level_caps: Floats,
    capacity: Floats,
    level: Floats,
    *,
    slack: float = 1e-6,
) -> list[str]:
    """Check feasibility and the max-min certificate; return what is wrong (empty: the rates are the max-min
    fair ones).

    The certificate: every flow is at its cap or crosses a full link on which no flow has a higher level.
    """
    wrong = []
    used = np.bincount(columns, weights=demand * level[rows], minlength=len(capacity))
    for link in np.flatnonzero(used > capacity * (1 + slack)):
        wrong.append(f"link {link} carries {used[link]} of {capacity[link]}")
    highest = np.zeros(len(capacity))
    np.maximum.at(highest, columns, level[rows])
    full = used >= capacity * (1 - slack)
    good = full[columns] & (level[rows] >= highest[columns] * (1 - slack))
    satisfied = level >= level_caps * (1 - slack)
    satisfied[rows[good]] = True
    wrong += [f"flow {f} at level {level[f]} has no bottleneck" for f in np.flatnonzero(~satisfied)]
    wrong += [f"flow {f} exceeds its cap" for f in np.flatnonzero(level > level_caps * (1 + slack))]
    return wrong
