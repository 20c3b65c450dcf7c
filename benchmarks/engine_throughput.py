"""Records per second of the engine on one core: a data-parallel and a pipeline job, look-ahead on and off.

Run `python benchmarks/engine_throughput.py [--ranks 8] [--steps 40] [--network fixed|netsim]`. Records are
made beforehand, so that only the engine is timed: decoding, matching, node graph, event loop, answers.
`fixed` is a network that costs nothing to simulate, `netsim` the real one.
"""

from __future__ import annotations

import argparse
import heapq
import json
import time
from typing import Any

from netsim.operation import Operation
from phantom.engine import Engine, EngineOptions
from phantom.wire import schema as wire
from phantom.wire.fields import Backend, CollectiveKind, Dependency, Tail
from phantom.wire.limits import PROTOCOL
from phantom.wire.records import pack

LAYER_PS = 400_000_000
BUCKETS = 24


class FixedNetwork:
    """Every operation takes 100 us, without sharing."""

    def __init__(self) -> None:
        self._open: list[tuple[int, int, int]] = []
        self._done: list[tuple[int, int, int]] = []
        self._now_ps = 0

    def start(self, op_id: int, op: Operation, start_ps: int) -> None:
        heapq.heappush(self._open, (start_ps + 100_000_000, op_id, start_ps))

    def next_event_ps(self) -> int | None:
        return self._open[0][0] if self._open else None

    def advance(self, to_ps: int) -> list[tuple[int, int]]:
        done = []
        while self._open and self._open[0][0] <= to_ps:
            entry = heapq.heappop(self._open)
            self._done.append(entry)
            done.append((entry[1], entry[0]))
        self._now_ps = to_ps
        return done

    def rollback(self, to_ps: int) -> None:
        while self._done and self._done[-1][0] > to_ps:
            heapq.heappush(self._open, self._done.pop())
        self._open = [entry for entry in self._open if entry[2] <= to_ps]
        heapq.heapify(self._open)
        self._now_ps = to_ps

    def commit(self, to_ps: int) -> None:
        self._done = [entry for entry in self._done if entry[0] > to_ps]


class Script:
    """Records of one rank, batch by batch; a batch ends where the rank would wait for an answer."""

    def __init__(self, rank: int, ranks: int, steps: int) -> None:
        self.batches: list[bytes] = []
        self._node = 0
        self._records: list[wire.Record] = [
            wire.Hello(protocol=PROTOCOL, rank=rank, world_size=ranks),
            wire.Comm("dp", list(range(ranks)), Backend.nccl, "dp"),
        ]
        now = 1_000_000 * (rank + 1)
        for step in range(steps):
            now = self._step(rank, ranks, step, now)
        self._records.append(wire.Bye())
        self.batches.append(pack(*self._records))
        self.records = 2 + 1 + steps * (BUCKETS * 8 + 3)

    def _step(self, rank: int, ranks: int, step: int, now: int) -> int:
        """DDP-like: per bucket two clock reports, a join, an all_reduce, and what P2P and copies cost on
        top.
        """
        compute = now
        last = 0
        for bucket in range(BUCKETS):
            compute += LAYER_PS + rank * 1000
            now += 50_000_000
            self._node += 1
            seq = step * BUCKETS + bucket + 1
            tail = Tail(last, 0, compute)
            last = self._node
            kind, size = CollectiveKind.all_reduce, 25 << 20
            self._records += [
                wire.Clock(0, now),
                wire.Collective(last, "dp", seq, kind, "bfloat16", size, -1, tail, 0, now, where="a.py:12"),
            ]  # fmt: skip
            for _ in range(3):
                self._node += 1
                both = [Dependency(last, 5_000), Dependency(self._node - 1, 7_000)]
                self._records.append(wire.Node(self._node, both, compute))
                last = self._node
            post = wire.Post(f"k{step}.{bucket}.{rank}", 0, now + 2)
            self._records += [wire.Clock(0, now + 1), post, wire.Clock(1, now + 3)]
        self._records += [
            wire.ClockEnd(1),
            wire.Step(step, Tail(last, 0, compute), 0, now),
            wire.Sync(step + 1, 0, Tail(last, 0, compute), now, "Tensor.item at train.py:20"),
        ]
        self.batches.append(pack(*self._records))
        self._records = []
        return compute + 200_000_000


def run(scripts: list[Script], network: Any, *, lookahead: bool) -> dict[str, Any]:
    """Times one job (CPU time). Returns records/s, end of the last step and the engine's counts."""
    engine = Engine(network, world_size=len(scripts), options=EngineOptions(lookahead=lookahead))
    received = [0] * len(scripts)
    sent = [0] * len(scripts)
    begin = time.process_time()
    ready = list(range(len(scripts)))
    while ready:
        for rank in ready:
            engine.feed(rank, scripts[rank].batches[sent[rank]], received[rank])
            sent[rank] += 1
            engine.run()
            while lookahead and engine.run_ahead(64):
                pass
        ready = []
        for rank, batches in engine.poll().items():
            received[rank] += len(batches)
            if sent[rank] < len(scripts[rank].batches):
                ready.append(rank)
    seconds = time.process_time() - begin
    assert engine.finished(), engine.awaited()
    return {
        "records": engine.records,
        "records_per_s": round(engine.records / seconds),
        "last_step_end_ps": max(engine.statistics.step_end_ps.values()),
        **engine.scheduler_counts,
    }


def main() -> None:
    """Prints one JSON line per mode; exits 1 if a mode is below the target."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--network", choices=["fixed", "netsim"], default="fixed")
    parser.add_argument("--target", type=int, default=30_000, help="records per second")
    arguments = parser.parse_args()
    slow = False
    for lookahead in (False, True):
        scripts = [Script(rank, arguments.ranks, arguments.steps) for rank in range(arguments.ranks)]
        network: Any = FixedNetwork()
        if arguments.network == "netsim":
            from netsim.cluster import load_cluster
            from netsim.network import Network

            nodes = -(-arguments.ranks // 8)
            network = Network(load_cluster("h100-dgx"), nodes=nodes, gpus_per_node=8, environment={}, seed=0)
        result = run(scripts, network, lookahead=lookahead)
        slow |= result["records_per_s"] < arguments.target
        print(json.dumps({"benchmark": "engine_throughput", "lookahead": lookahead, "ranks": arguments.ranks,
                          "network": arguments.network, **result}))  # fmt: skip
    raise SystemExit(1 if slow else 0)


if __name__ == "__main__":
    main()
