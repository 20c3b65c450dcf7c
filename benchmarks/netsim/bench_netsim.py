"""Speed of netsim on one core, beside a plain from-scratch solver.

python benchmarks/netsim/bench_netsim.py [--quick] [--json]

Prints one line per case: what, the best and the median of several runs, the target, and a plain solver's
time.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from netsim.cluster import load_cluster
from netsim.cluster.spec import ClusterSpec
from netsim.network import Network
from netsim.operation import Operation
from netsim.sharing.blocks import Flight, ManyBlock
from netsim.sharing.maxmin import solve, solve_plain, violations


@dataclass(frozen=True)
class Result:
    """Times of one case in milliseconds; `plain_ms` is the plain solver's, where one was run."""

    name: str
    best_ms: float
    median_ms: float
    target_ms: float
    plain_ms: float | None = None

    def __str__(self) -> str:
        plain = f"{self.plain_ms:12.1f}" if self.plain_ms is not None else f"{'-':>12}"
        verdict = "ok" if self.median_ms <= self.target_ms else "MISSED"
        times = f"{self.best_ms:9.2f} {self.median_ms:9.2f} {self.target_ms:9.1f}"
        return f"{self.name:<62} {times} {plain}  {verdict}"


def timed(
    action: Callable[[], object], *, repeat: int, prepare: Callable[[], object] | None = None
) -> list[float]:
    """CPU milliseconds of each run of `action`; `prepare` runs before each, untimed."""
    times = []
    for _ in range(repeat):
        if prepare is not None:
            prepare()
        begin = time.process_time()
        action()
        times.append((time.process_time() - begin) * 1e3)
    return times


def result(name: str, times: list[float], target_ms: float, plain_ms: float | None = None) -> Result:
    """A case's line."""
    return Result(name, min(times), statistics.median(times), target_ms, plain_ms)


def cluster(*, routing: str = "spray", kind: str = "rail-fat-tree") -> ClusterSpec:
    """DGX H100 servers, leaves of 32 servers, 16 spines."""
    spec = load_cluster("h100-dgx")
    return replace(
        spec, fabric=replace(spec.fabric, kind=kind, routing=routing, nodes_per_leaf=32, spines=16)
    )


def all_to_all_solve(*, routing: str, target_ms: float, plain: bool) -> Result:
    """One solve of all inter-server flows of 16 expert groups of 64 GPUs on 1,024 GPUs (57,344 flows).

    A group has the GPUs of the servers 16 apart, so that its flows cross leaves and spines. With spraying
    the flows are the same ones, each over the bundles; the network itself solves them as one class per
    group.
    """
    net = Network(cluster(routing=routing), nodes=128, gpus_per_node=8, environment={}, seed=0)
    pairs = []
    for group in range(16):
        ranks = [(group + 16 * i) * 8 + g for i in range(8) for g in range(8)]
        pairs += [(a, b) for a in ranks for b in ranks if a // 8 != b // 8]
    part = net.planner._messages._flows([(a, b, 1e6) for a, b in pairs])[0]
    shape = part.shape
    assert shape is not None
    assert shape.flows == 57_344
    sharing = net._sharing
    shape = sharing.intern(shape)
    block = ManyBlock(Flight(1, 0), 0, part, shape)
    sharing.add(block)
    system = sharing.system(sharing.numbers())[:5]
    times = timed(lambda: solve(*system), repeat=9)
    plain_ms = min(timed(lambda: solve_plain(*system), repeat=1)) if plain else None
    assert violations(*system, solve(*system)) == []
    return result(
        f"solve 57,344 all_to_all flows, 1,024 GPUs, {routing}, one by one", times, target_ms, plain_ms
    )


def all_to_all_event() -> Result:
    """The same all_to_alls as the engine would start them: one sprayed class per group."""
    groups = [tuple(sorted((g + 16 * i) * 8 + r for i in range(8) for r in range(8))) for g in range(16)]
    ops = [Operation(kind="all_to_all", ranks=ranks, size_bytes=64 << 20) for ranks in groups]
    net = Network(cluster(), nodes=128, gpus_per_node=8, environment={}, seed=0)
    for op in ops:
        net.planner.plan(op)

    def once() -> None:
        start = net._now_ps
        for i, op in enumerate(ops):
            net.start(i, op, start)
        event = net.next_event_ps()
        assert event is not None
        net.advance(event)

    def reset() -> None:
        net.advance(net._now_ps + 10**13)
        net.commit(net._now_ps)
        net._sharing._memo.clear()

    return result(
        "the same flows sprayed, as 16 classes: start and first solve",
        timed(once, repeat=9, prepare=reset),
        5.0,
    )


def rollback() -> Result:
    """Roll back the last 100 events of a 1,024-rank job: tensor-, data- and pipeline-parallel traffic."""
    net = Network(cluster(), nodes=128, gpus_per_node=8, environment={}, seed=0)
    marks: list[int] = []
    op_id = 0
    for step in range(4):
        begin = step * 400_000_000
        for node in range(128):
            op = Operation(kind="all_reduce", ranks=tuple(range(node * 8, node * 8 + 8)), size_bytes=32 << 20)
            op_id += 1
            net.start(op_id, op, begin + node * 100_000)
        for rail in range(8):
            op = Operation(kind="all_reduce", ranks=tuple(range(rail, 1024, 8)), size_bytes=64 << 20)
            op_id += 1
            net.start(op_id, op, begin + 50_000_000 + rail)
        for node in range(0, 127, 2):
            op_id += 1
            op = Operation(kind="p2p", source=node * 8, destination=node * 8 + 8, size_bytes=16 << 20)
            net.start(op_id, op, begin + 60_000_000)
    while (event := net.next_event_ps()) is not None and len(marks) < 700:
        net.advance(event)
        marks.append(event)
    end = marks[-1]

    def forward() -> None:
        net.advance(end)

    return result(
        "roll back 100 events, 1,024 ranks",
        timed(lambda: net.rollback(marks[-101]), repeat=9, prepare=forward),
        50.0,
    )


def one_all_reduce(nodes: int, target_ms: float) -> Result:
    """One 128 MiB all_reduce over all GPUs, from nothing planned to its end, beside another that shares its
    links.
    """
    spec = cluster()
    op = Operation(kind="all_reduce", ranks=tuple(range(nodes * 8)), size_bytes=128 << 20)
    holder: list[Network] = []

    def prepare() -> None:
        holder[:] = [Network(spec, nodes=nodes, gpus_per_node=8, environment={}, seed=0)]

    def once() -> None:
        net = holder[0]
        net.start(1, op, 0)
        net.start(2, Operation(kind="p2p", source=0, destination=nodes * 8 - 8, size_bytes=1 << 26), 0)
        net.advance(10**13)

    name = f"128 MiB all_reduce over {nodes * 8:,} GPUs with a message in its way, cold"
    return result(name, timed(once, repeat=3, prepare=prepare), target_ms)


def events_per_second() -> Result:
    """Milliseconds for 1,000 operations of a repeating 64-rank job, planning included."""
    net = Network(cluster(), nodes=8, gpus_per_node=8, environment={}, seed=0)
    tp = [
        Operation(kind="all_reduce", ranks=tuple(range(n * 8, n * 8 + 8)), size_bytes=32 << 20)
        for n in range(8)
    ]
    dp = [Operation(kind="all_reduce", ranks=tuple(range(r, 64, 8)), size_bytes=64 << 20) for r in range(8)]
    state = {"now": 0, "id": 0}

    def once() -> None:
        for _ in range(63):
            for op in (*tp, *dp):
                state["id"] += 1
                net.start(state["id"], op, state["now"])
            state["now"] += 4_000_000_000
            net.advance(state["now"])
            net.commit(state["now"])

    return result("1,008 operations of a 64-rank job", timed(once, repeat=5), 1000.0)


def main() -> int:
    """Run all cases."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="without the plain solver and the largest cases")
    parser.add_argument("--json", action="store_true", help="one JSON object per line")
    options = parser.parse_args()
    cases: list[Callable[[], Result]] = [
        lambda: all_to_all_solve(routing="ecmp", target_ms=50.0, plain=not options.quick),
        lambda: all_to_all_solve(routing="spray", target_ms=5.0, plain=not options.quick),
        all_to_all_event,
        rollback,
        lambda: one_all_reduce(128, 50.0),
        events_per_second,
    ]
    if not options.quick:
        cases.append(lambda: one_all_reduce(1024, 500.0))
    missed = False
    if not options.json:
        print(f"{'':<62} {'best ms':>9} {'median':>9} {'target':>9} {'plain ms':>12}")
    for case in cases:
        line = case()
        missed |= line.median_ms > line.target_ms
        print(json.dumps(line.__dict__) if options.json else line, flush=True)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
