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
from phantom.wire.records import pack, unpack


class Reference:
    """Runs clients to their end; then `steps` and the clients' answers are the truth."""

    def __init__(self, clients: list[Client], network: ReplayNetwork) -> None:
        self.clients = clients
        self.network = network
        self.nodes: dict[tuple[int, int], tuple[str, Any]] = {}
        self.ops: dict[Any, dict[str, Any]] = {}
        self.comms: dict[str, tuple[list[int], str]] = {}
        self.posts: dict[str, int] = {}
        self.adds: dict[str, list[tuple[int, int, int]]] = {}
        self.waiting: list[tuple[int, list[Any]]] = []
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
        for dep, offset in deps:
            end = self.end(rank, dep)
            if end is None:
                return None
            latest = max(latest, end + offset)
        return latest

    def tail(self, rank: int, tail: Any) -> int | None:
        node, offset, bound = tail
        if not node:
            return bound
        end = self.end(rank, node)
        return None if end is None else max(bound, end + offset)

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

    def take(self, rank: int, record: list[Any]) -> None:
        kind = record[0]
        if kind == 4:
            self.nodes[rank, record[1]] = ("join", (record[2], record[3]))
        elif kind == 6:
            self.comms[record[1]] = (record[2], record[3])
        elif kind == 5:
            _, node, comm, seq, what, dtype, size, root, tail, _, now, _, _ = record
            ranks, _ = self.comms[comm]
            size = 0 if what == "barrier" else size
            operation = Operation(kind=what, ranks=tuple(ranks), size_bytes=size, dtype=dtype, root=root)
            key = ("c", comm, seq)
            self._post(key, len(ranks), operation, (rank, tail, now))
            self.nodes[rank, node] = ("op", key)
        elif kind == 7:
            _, node, comm, tail, _, now, sides, _ = record
            ranks, _ = self.comms[comm]
            me = ranks.index(rank)
            keys = []
            for peer, is_send, seq, size, *_ in sides:
                pair = (me, peer) if is_send else (peer, me)
                keys.append(("p", comm, *pair, seq))
                operation = Operation(kind="p2p", size_bytes=size, source=pair[0], destination=pair[1])
                self._post(keys[-1], 2, operation, (rank, tail, now))
            self.nodes[rank, node] = ("ops", keys)
        elif kind == 18:
            _, node, direction, size, _, tail, _, now = record
            operation = Operation(kind="transfer", ranks=(rank,), size_bytes=size, direction=direction)
            self._post(("t", rank, node), 1, operation, (rank, tail, now))
            self.nodes[rank, node] = ("op", ("t", rank, node))
        elif kind == 10:
            self.posts[record[1]] = min(record[3], self.posts.get(record[1], record[3]))
        elif kind == 14:
            self.steps.setdefault(record[1], {})[rank] = record[2]
        elif kind in (8, 9, 11, 13):
            self.waiting.append((rank, record))
            if kind == 13:
                _, _, _, key, amount, result, now = record
                self.adds.setdefault(key, []).append((result, amount, now))
                self.posts[key] = min(now, self.posts.get(key, now))

    def _post(self, key: Any, need: int, operation: Operation, post: Any) -> None:
        empty = {"need": need, "operation": operation, "posts": [], "start": None, "end": None}
        self.ops.setdefault(key, empty)["posts"].append(post)

    def answer(self, rank: int, record: list[Any], horizon: int) -> int | None:
        kind, now = record[0], record[4]
        if kind == 8:
            time = self.tail(rank, record[3])
            return None if time is None else max(time, now)
        if kind == 9:
            time = self.tail(rank, record[3])
            if now > horizon or (time is None and not self.quiet_until(now)):
                return None
            return 1 if time is not None and time <= now else 0
        if kind == 11:
            times = [self.posts.get(key) for key in record[3]]
            known = [time for time in times if time is not None]
            if len(known) < len(times) or max(known) > max(horizon, now):
                return None
            return max([now, *known])
        _, _, _, key, _, result, now = record
        below = [(amount, when) for value, amount, when in self.adds[key] if value <= result]
        return max(when for _, when in below) if sum(amount for amount, _ in below) == result else None

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
            for entry in sorted(self.waiting, key=lambda entry: (entry[1][4], entry[0])):
                value = self.answer(*entry, horizon)
                if value is not None:
                    self.waiting.remove(entry)
                    self.clients[entry[0]].receive(pack([2, entry[1][1], value]))
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
                for record in unpack(client.take()):
                    self.take(client.rank, record)
            else:
                break
        assert not self.waiting, "the reference is stuck"
        ends: dict[int, int] = {}
        for index, tails in self.steps.items():
            times = [self.tail(rank, tail) for rank, tail in tails.items()]
            ends[index] = max(time for time in times if time is not None)
        return ends
