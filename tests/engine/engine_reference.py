"""A second, naive simulator: strictly in virtual-time order, nothing incremental, no horizon, no
look-ahead.

The rank that is furthest behind acts; network events below its clock happen first. Everything else is
recomputed by scanning and recursion. It shares only the records with the engine.
"""

from __future__ import annotations

from typing import Any

from engine_client import Client
from engine_networks import ReplayNetwork

from netsim.operation import Operation
from phantom.wire import schema as wire
from phantom.wire.fields import Tail
from phantom.wire.records import decode, pack

Asking = (wire.Sync, wire.Query, wire.Wait, wire.Add)


class Reference:
    """Runs clients to their end; then `steps` and the clients' answers are the truth."""

    def __init__(self, clients: list[Client], network: ReplayNetwork) -> None:
        self.clients = clients
        self.network = network
        self.nodes: dict[tuple[int, int], tuple[str, Any]] = {}
        self.ops: dict[Any, dict[str, Any]] = {}
        self.comms: dict[str, list[int]] = {}
        self.posts: dict[str, int] = {}
        self.adds: dict[str, list[tuple[int, int, int]]] = {}
        self.waiting: list[tuple[int, Any]] = []
        self.steps: dict[int, dict[int, Any]] = {}
        self.started: dict[int, Any] = {}

    def end(self, rank: int, node: int) -> int | None:
        kind, data = self.nodes[rank, node]
        if kind == "op":
            return self.op_end(data)
        if kind == "ops":
            ends = [self.op_end(key) for key in data]
            return None if any(end is None for end in ends) else max(e for e in ends if e is not None)
        deps, bound = data
        latest = bound
        for dep in deps:
            end = self.end(rank, dep.node)
            if end is None:
                return None
            latest = max(latest, end + dep.offset_ps)
        return latest

    def tail(self, rank: int, tail: Tail) -> int | None:
        if not tail.node:
            return tail.bound_ps
        end = self.end(rank, tail.node)
        return None if end is None else max(tail.bound_ps, end + tail.offset_ps)

    def ready(self, op: dict[str, Any]) -> int | None:
        if len(op["posts"]) < op["need"]:
            return None
        times = [self.tail(rank, tail) for rank, tail, _ in op["posts"]]
        if any(time is None for time in times):
            return None
        return max([*(time for time in times if time is not None), *(now for _, _, now in op["posts"])])

    def op_end(self, key: Any) -> int | None:
        end: int | None = self.ops[key]["end"]
        return end

    def take(self, rank: int, record: wire.Record) -> None:
        if isinstance(record, wire.Node):
            self.nodes[rank, record.node] = ("join", (record.dependencies, record.bound_ps))
        elif isinstance(record, wire.Comm):
            self.comms[record.comm] = record.ranks
        elif isinstance(record, wire.Collective):
            ranks = self.comms[record.comm]
            size = 0 if record.kind == "barrier" else record.size_bytes
            operation = Operation(
                kind=str(record.kind),
                ranks=tuple(ranks),
                size_bytes=size,
                dtype=record.dtype,
                root=record.root,
            )
            key: Any = ("c", record.comm, record.seq)
            self._post(key, len(ranks), operation, (rank, record.ready, record.now_ps))
            self.nodes[rank, record.node] = ("op", key)
        elif isinstance(record, wire.P2P):
            me = self.comms[record.comm].index(rank)
            keys = []
            for side in record.sides:
                pair = (me, side.peer) if side.is_send else (side.peer, me)
                keys.append(("p", record.comm, *pair, side.seq))
                operation = Operation(
                    kind="p2p", size_bytes=side.size_bytes, source=pair[0], destination=pair[1]
                )
                self._post(keys[-1], 2, operation, (rank, record.ready, record.now_ps))
            self.nodes[rank, record.node] = ("ops", keys)
        elif isinstance(record, wire.Transfer):
            operation = Operation(
                kind="transfer", ranks=(rank,), size_bytes=record.size_bytes, direction=str(record.direction)
            )
            self._post(("t", rank, record.node), 1, operation, (rank, record.ready, record.now_ps))
            self.nodes[rank, record.node] = ("op", ("t", rank, record.node))
        elif isinstance(record, wire.Post):
            self._set(record.key, record.now_ps)
        elif isinstance(record, wire.Step):
            self.steps.setdefault(record.index, {})[rank] = record.tail
        elif isinstance(record, Asking):
            self.waiting.append((rank, record))
            if isinstance(record, wire.Add):
                self.adds.setdefault(record.key, []).append((record.result, record.amount, record.now_ps))
                self._set(record.key, record.now_ps)

    def _set(self, key: str, now: int) -> None:
        self.posts[key] = min(now, self.posts.get(key, now))

    def _post(self, key: Any, need: int, operation: Operation, post: Any) -> None:
        empty = {"need": need, "operation": operation, "posts": [], "start": None, "end": None}
        self.ops.setdefault(key, empty)["posts"].append(post)

    def answer(self, rank: int, record: Any, horizon: int) -> int | None:
        now = record.now_ps
        if isinstance(record, wire.Sync):
            time = self.tail(rank, record.tail)
            return None if time is None else max(time, now)
        if isinstance(record, wire.Query):
            time = self.tail(rank, record.tail)
            if now > horizon or (time is None and not self.quiet_until(now)):
                return None
            return 1 if time is not None and time <= now else 0
        if isinstance(record, wire.Wait):
            times = [self.posts.get(key) for key in record.keys]
            known = [time for time in times if time is not None]
            if len(known) < len(times) or max(known) > max(horizon, now):
                return None
            return max([now, *known])
        below = [(amount, when) for value, amount, when in self.adds[record.key] if value <= record.result]
        total = sum(amount for amount, _ in below)
        return max(when for _, when in below) if total == record.result else None

    def quiet_until(self, now: int) -> bool:
        event = self.next_event()
        return event is None or event > now

    def next_start(self) -> tuple[int, list[Any]] | None:
        ready: dict[int, list[Any]] = {}
        for key, op in self.ops.items():
            if op["start"] is None:
                time = self.ready(op)
                if time is not None:
                    ready.setdefault(time, []).append(key)
        return (min(ready), ready[min(ready)]) if ready else None

    def next_event(self) -> int | None:
        start = self.next_start()
        times = [self.network.next_event_ps(), start[0] if start else None]
        return min((time for time in times if time is not None), default=None)

    def happen(self) -> None:
        start = self.next_start()
        network = self.network.next_event_ps()
        if network is not None and (start is None or network <= start[0]):
            for op_id, end in self.network.advance(network):
                self.ops[self.started[op_id]]["end"] = end
            return
        assert start is not None
        for key in start[1]:
            op_id = len(self.started) + 1
            self.started[op_id] = key
            self.ops[key]["start"] = start[0]
            self.network.start(op_id, self.ops[key]["operation"], start[0])

    def run(self) -> dict[int, int]:
        """Returns the end of each step."""
        while True:
            running = [client for client in self.clients if client.blocked is None and not client.over]
            horizon = min((client.now for client in running), default=1 << 62)
            answered = False
            for entry in sorted(self.waiting, key=lambda entry: (entry[1].now_ps, entry[0])):
                value = self.answer(*entry, horizon)
                if value is not None:
                    self.waiting.remove(entry)
                    self.clients[entry[0]].receive(pack(wire.Answer(entry[1].request, value)))
                    answered = True
                    break
            if answered:
                continue
            event = self.next_event()
            if event is not None and event < horizon:
                self.happen()
            elif running:
                client = min(running, key=lambda client: (client.now, client.rank))
                client.step()
                for record in decode(client.take()).records:
                    self.take(client.rank, record)
            else:
                break
        assert not self.waiting, "the reference is stuck"
        ends: dict[int, int] = {}
        for index, tails in self.steps.items():
            times = [self.tail(rank, tail) for rank, tail in tails.items()]
            ends[index] = max(time for time in times if time is not None)
        return ends
