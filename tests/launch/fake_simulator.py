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

from phantom.wire import simulator_pb2 as messages
from phantom.wire import simulator_pb2_grpc as service
from phantom.wire.records import EngineRecord, RankRecord, pack, unpack


class FakeSimulator(service.SimulatorServicer):
    """Every wait ends at its own time; every store key counts as posted; steps end at their bounds."""

    def __init__(self) -> None:
        self.job: dict[str, Any] = {}
        self.records: dict[int, list[list[Any]]] = {}
        self.exited: dict[int, int] = {}
        self.notices: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self.abort_at_hello: list[Any] | None = None
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
        reply = {"device": {"name": "NVIDIA H100 80GB HBM3"}, "host": {}}
        return messages.JsonMessage(json=json.dumps(reply))

    def CloseJob(self, request: Any, context: Any) -> Any:
        self.end = json.loads(request.json)
        self.notices.put(None)
        steps: dict[int, int] = {}
        for records in self.records.values():
            for record in records:
                if record[0] == RankRecord.STEP:
                    steps[record[1]] = max(steps.get(record[1], 0), record[4])
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
            for record in unpack(batch.records):
                self.records.setdefault(batch.rank, []).append(record)
                answers += self._answer(record)
            if answers:
                yield messages.EngineBatch(records=pack(*answers))

    def _answer(self, record: list[Any]) -> list[list[Any]]:
        kind = record[0]
        if kind == RankRecord.HELLO:
            if self.abort_at_hello is not None:
                return [self.abort_at_hello]
            return [[EngineRecord.WELCOME, {}]]
        if kind == RankRecord.SYNC:
            return [[EngineRecord.ANSWER, record[1], max(record[4], record[3][2])]]
        if kind == RankRecord.WAIT:
            return [[EngineRecord.ANSWER, record[1], record[4]]]
        if kind == RankRecord.ADD:
            return [[EngineRecord.ANSWER, record[1], record[6]]]
        if kind == RankRecord.QUERY:
            return [[EngineRecord.ANSWER, record[1], 1]]
        if kind in (RankRecord.COLLECTIVE, RankRecord.P2P, RankRecord.NODE, RankRecord.TRANSFER):
            return [[EngineRecord.RESOLVED, [record[1], 0]]]
        return []


if __name__ == "__main__":
    simulator = FakeSimulator()
    sys.stdout.write(f"phantom simulator listening on {simulator.address}\n")
    sys.stdout.flush()
    threading.Event().wait()
