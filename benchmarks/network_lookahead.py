"""What running ahead of the horizon buys: real time of a job with and without it, over gRPC, and its
memory.

Run `python -m benchmarks.network_lookahead [--ranks 8 32] [--steps 40]`. The simulator runs in a process of
its own; ranks are threads that sleep where a real rank would work (one slow rank lags behind, as there
always is one), and send what a data-parallel job sends. Prints one JSON line per size and mode; exits 1 if
the modes disagree or memory grows.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import queue
import random
import threading
import time
from collections.abc import Iterator
from typing import Any

import grpc

from phantom.wire import schema as wire
from phantom.wire import simulator_pb2 as messages
from phantom.wire import simulator_pb2_grpc as service
from phantom.wire.fields import Backend, CollectiveKind, Tail
from phantom.wire.limits import PROTOCOL
from phantom.wire.records import pack, unpack

LAYERS = 16
FLUSHES = 4
WORK_S = 0.004


class NoCosts:
    """Kernel costs are not part of this benchmark."""

    def cost_batch(self, request: bytes) -> bytes:
        return request


def serve(lookahead: bool, pipe: Any) -> None:
    """Body of the simulator's process; answers each message on the pipe with its memory in bytes."""
    from phantom.serve import Server

    with Server("h100-dgx", lookahead=lookahead, cost_model=NoCosts()) as server:  # type: ignore[arg-type]
        pipe.send(server.address)
        while pipe.recv():
            with open("/proc/self/statm") as statm:
                pipe.send(int(statm.read().split()[1]) * 4096)


class Rank(threading.Thread):
    """One rank: layers of backward with an all_reduce each, then a synchronisation."""

    def __init__(self, stub: Any, rank: int, ranks: int, steps: int, each_step: Any) -> None:
        super().__init__(daemon=True)
        self._stub, self._rank, self._ranks, self._steps = stub, rank, ranks, steps
        self._each_step = each_step
        self._out: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._acked = 0
        self.ends: list[int] = []

    def _batches(self) -> Iterator[messages.RankBatch]:
        while (batch := self._out.get()) is not None:
            yield batch

    def _send(self, records: list[wire.Record]) -> None:
        self._out.put(messages.RankBatch(rank=self._rank, records=pack(*records), acked=self._acked))

    def run(self) -> None:
        rng = random.Random(self._rank)
        replies = self._stub.Session(self._batches())
        self._send(
            [
                wire.Hello(protocol=PROTOCOL, rank=self._rank, world_size=self._ranks),
                wire.Comm("dp", list(range(self._ranks)), Backend.nccl, "dp"),
            ]
        )
        now, node = 0, 0
        slow = 2.0 if self._rank == 0 else 1.0
        for step in range(self._steps):
            records: list[wire.Record] = []
            for layer in range(LAYERS):
                now += 300_000_000
                node += 1
                tail = Tail(node - 1 if layer else 0, 0, now + 100_000)
                post = wire.Collective(
                    node, "dp", node, CollectiveKind.all_reduce, "bfloat16", 25 << 20, -1, tail, 0, now,
                    None, "train.py:9",
                )  # fmt: skip
                records.append(post)
                if (layer + 1) % (LAYERS // FLUSHES) == 0:
                    time.sleep(slow * WORK_S * rng.uniform(0.5, 1.5) / FLUSHES)
                    self._send(records)
                    records = []
            last = Tail(node, 0, 0)
            self._send([wire.Step(step, last, 0, now), wire.Sync(step + 1, 0, last, now, "item")])
            now = self._answer(replies)
            self.ends.append(now)
            self._each_step(self._rank, step)
        self._send([wire.Bye()])
        self._out.put(None)
        for _ in replies:
            pass

    def _answer(self, replies: Any) -> int:
        for reply in replies:
            self._acked += 1
            for record in unpack(reply.records):
                if isinstance(record, wire.Answer):
                    return record.value
                assert not isinstance(record, wire.Abort), record
        raise AssertionError("the stream ended")


def run(ranks: int, steps: int, *, lookahead: bool) -> dict[str, Any]:
    """One job; returns its real time, its ends and the simulator's memory after step 5 and at the end."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=serve, args=(lookahead, theirs), daemon=True)
    process.start()
    memory: dict[int, int] = {}

    def each_step(rank: int, step: int) -> None:
        if rank == 0 and step in (5, steps - 1):
            ours.send(True)
            memory[step] = ours.recv()

    with grpc.insecure_channel(ours.recv()) as channel:
        stub = service.SimulatorStub(channel)
        job = {"world_size": ranks, "nodes": -(-ranks // 8), "gpus_per_node": 8}
        stub.OpenJob(messages.JsonMessage(json=json.dumps(job)))
        threads = [Rank(stub, rank, ranks, steps, each_step) for rank in range(ranks)]
        begin = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        seconds = time.perf_counter() - begin
        summary = json.loads(stub.CloseJob(messages.JsonMessage(json="{}")).json)
    ours.send(False)
    process.join()
    return {
        "real_s": round(seconds, 3),
        "ends": [thread.ends for thread in threads],
        "memory_bytes_step_5": memory.get(5, 0),
        "memory_bytes_end": memory.get(steps - 1, 0),
        "rollbacks": summary["simulator"]["rollbacks"],
        "events": summary["simulator"]["events"],
    }


def main() -> None:
    """Runs all sizes in both modes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, nargs="+", default=[8, 32])
    parser.add_argument("--steps", type=int, default=40)
    arguments = parser.parse_args()
    good = True
    for ranks in arguments.ranks:
        results = {mode: run(ranks, arguments.steps, lookahead=mode) for mode in (False, True)}
        good &= results[False].pop("ends") == results[True].pop("ends")
        for mode, result in results.items():
            growth = result["memory_bytes_end"] - result["memory_bytes_step_5"]
            good &= growth < 8 << 20
            line = {
                "benchmark": "network_lookahead",
                "ranks": ranks,
                "lookahead": mode,
                "growth_bytes": growth,
            }
            print(json.dumps({**line, "steps": arguments.steps, **result}), flush=True)
    raise SystemExit(0 if good else 1)


if __name__ == "__main__":
    main()
