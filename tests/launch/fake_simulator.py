"""A simulator that answers everything at once; for tests of the launcher and of the rank's side of the
session.

Run as a program it serves in the way that `phantom serve` does: `python fake_simulator.py`.
"""

from __future__ import annotations

import json
import queue
import sys
import threading
from collections.abc import Iterator
from concurrent import futures
from typing import Any

import grpc
import msgpack

from phantom.wire import schema as wire
from phantom.wire import simulator_pb2 as messages
from phantom.wire import simulator_pb2_grpc as service
from phantom.wire.limits import PROTOCOL
from phantom.wire.records import decode, pack


class FakeSimulator(service.SimulatorServicer):
    """Every wait ends at its own time; every store key counts as posted; steps end at their bounds."""

    def __init__(self) -> None:
        self.job: dict[str, Any] = {}
        self.records: dict[int, list[wire.RankRecord]] = {}
        self.exited: dict[int, int] = {}
        self.notices: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self.abort_at_hello: wire.Abort | None = None
        self._server = grpc.server(futures.ThreadPoolExecutor(64))
        service.add_SimulatorServicer_to_server(self, self._server)
        self.port = self._server.add_insecure_port("127.0.0.1:0")
        self._server.start()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def stop(self) -> None:
        self.notices.put(None)
        self._server.stop(0).wait()

    def OpenJob(self, request: Any, context: Any) -> Any:
        self.job = json.loads(request.json)
        config = {"device": {"name": "NVIDIA H100 80GB HBM3"}, "host": {}}
        reply = {"token": "the-job's-token", "config": config, "recording": False}
        return messages.JsonMessage(json=json.dumps(reply))

    def CloseJob(self, request: Any, context: Any) -> Any:
        self.end = json.loads(request.json)
        self.notices.put(None)
        steps: dict[int, int] = {}
        for records in self.records.values():
            for record in records:
                if isinstance(record, wire.Step):
                    steps[record.index] = max(steps.get(record.index, 0), record.now_ps)
        listed = [{"index": index, "virtual_s": steps[index] / 1e12} for index in sorted(steps)]
        status = "interrupted" if self.end["interrupted"] else "ok"
        return messages.JsonMessage(
            json=json.dumps({"schema": 1, "status": status, "steps": listed, "warnings": []})
        )

    def RankExited(self, request: Any, context: Any) -> Any:
        told = json.loads(request.json)
        self.exited[told["rank"]] = told["status"]
        return messages.JsonMessage(json="{}")

    def Watch(self, request: Any, context: Any) -> Iterator[Any]:
        while (notice := self.notices.get()) is not None:
            yield messages.JsonMessage(json=json.dumps(notice))

    def Cost(self, request: Any, context: Any) -> Any:
        kernels = msgpack.unpackb(request.kernels)
        costs = [[10_000_000, "predicted", "other", 1, 0] for _ in kernels]
        return messages.CostBatch(costs=msgpack.packb(costs))

    def Session(self, request_iterator: Any, context: Any) -> Iterator[Any]:
        for batch in request_iterator:
            answers = []
            decoded = decode(batch.records)
            assert decoded.error is None, decoded.error
            for record in decoded.records:
                self.records.setdefault(batch.rank, []).append(record)
                answers += self._answer(record)
            if answers:
                yield messages.EngineBatch(records=pack(*answers))

    def _answer(self, record: wire.RankRecord) -> list[wire.Record]:
        if isinstance(record, wire.Hello):
            return [self.abort_at_hello or wire.Welcome(PROTOCOL, record.world_size)]
        if isinstance(record, wire.Sync):
            return [wire.Answer(record.request, max(record.now_ps, record.tail.bound_ps))]
        if isinstance(record, (wire.Wait, wire.Add)):
            return [wire.Answer(record.request, record.now_ps)]
        if isinstance(record, wire.Query):
            return [wire.Answer(record.request, 1)]
        if isinstance(record, (wire.Collective, wire.P2P, wire.Node, wire.Transfer)):
            return [wire.Resolved([record.node, 0])]
        return []


def hello_of(simulator: FakeSimulator, rank: int) -> wire.Hello:
    """The first record of a rank."""
    hello = simulator.records[rank][0]
    assert isinstance(hello, wire.Hello)
    return hello


if __name__ == "__main__":
    simulator = FakeSimulator()
    sys.stdout.write(f"phantom simulator listening on {simulator.address}\n")
    sys.stdout.flush()
    threading.Event().wait()
