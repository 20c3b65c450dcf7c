"""A rank as the engine sees it: runs a small program, sends records, understands answers."""

from __future__ import annotations

from typing import Any

from engine_talk import hello

from phantom.wire import schema as wire
from phantom.wire.fields import Backend, CollectiveKind, Dependency, Direction, Side, Tail
from phantom.wire.records import pack, unpack

Action = tuple[Any, ...]
Point = tuple[int, int, int]

HOST_PS = 1_000


class Client:
    """Executes `program`; everything it emits depends only on the program and on the answers it gets.

    `simplify`: use known ends of nodes in later tails (as a real rank does when RESOLVED happens to be
    there in time).
    """

    def __init__(self, rank: int, world: int, program: list[Action], *, simplify: bool = True) -> None:
        self.rank = rank
        self.program = program
        self.simplify = simplify
        self.now = 0
        self.pc = 0
        self.blocked: int | None = None
        self.records: list[wire.Record] = [hello(rank, world)]
        self.received = 0
        self.ends: dict[int, int] = {}
        self.operations: list[int] = []
        self.values: list[tuple[int, int, Any]] = []
        self.answers: list[tuple[int, int]] = []
        self.aborted: tuple[str, str] | None = None
        self.over = False
        self._streams: dict[str, Point] = {}
        self._nodes = 0
        self._requests = 0
        self._seq: dict[Any, int] = {}
        self._after: Any = None

    # Records

    def take(self, count: int | None = None) -> bytes:
        """Returns the next `count` records (all by default) as a batch."""
        count = len(self.records) if count is None else count
        batch, self.records = self.records[:count], self.records[count:]
        return pack(*batch)

    def receive(self, batch: bytes) -> None:
        """Takes an EngineBatch."""
        self.received += 1
        for record in unpack(batch):
            if isinstance(record, wire.Answer):
                assert record.request == self.blocked
                self.blocked = None
                self.answers.append((record.request, record.value))
                self._after(record.value)
            elif isinstance(record, wire.Resolved):
                for node, end in zip(record.ends[::2], record.ends[1::2], strict=True):
                    assert node not in self.ends, "RESOLVED twice"
                    self.ends[node] = end
            elif isinstance(record, wire.ValueOf):
                self.values.append((record.node, record.index, record.value))
            elif isinstance(record, wire.Abort):
                self.aborted = (record.kind, record.message)

    # Tails

    def _tail(self, stream: str) -> Point:
        node, offset, bound = self._streams.get(stream, (0, 0, 0))
        if node in self.ends and self.simplify:
            node, offset, bound = 0, 0, max(bound, self.ends[node] + offset)
            self._streams[stream] = (node, offset, bound)
        elif node in self.ends:
            # The engine may forget it after the acknowledgement, so it must not be named any more.
            node, offset, bound = 0, 0, max(bound, self.ends[node] + offset)
        return node, offset, bound

    def _join(self, a: Point, b: Point) -> Point:
        bound = max(a[2], b[2])
        if a[0] == b[0]:
            return a[0], max(a[1], b[1]), bound
        if not a[0] or not b[0]:
            kept = a if a[0] else b
            return kept[0], kept[1], bound
        node = self._new_node()
        self.records.append(wire.Node(node, [Dependency(a[0], a[1]), Dependency(b[0], b[1])], bound))
        return node, 0, 0

    def _new_node(self) -> int:
        self._nodes += 1
        return self._nodes

    def _request(self, after: Any) -> int:
        self._requests += 1
        self.blocked = self._requests
        self._after = after
        return self._requests

    def _set_now(self, value: int) -> None:
        assert value >= self.now
        self.now = value

    # Program

    def step(self) -> None:
        """Executes the next action."""
        assert self.blocked is None
        assert not self.over
        if self.pc == len(self.program):
            self.records.append(wire.Bye())
            self.over = True
            return
        action = self.program[self.pc]
        self.pc += 1
        self.now += HOST_PS
        getattr(self, "_do_" + action[0])(*action[1:])

    def _do_cpu(self, duration: int) -> None:
        self.now += duration

    def _do_clock(self) -> None:
        self.records.append(wire.Clock(0, self.now))

    def _do_kernel(self, stream: str, duration: int) -> None:
        node, offset, bound = self._tail(stream)
        self._streams[stream] = (node, offset + duration, max(bound, self.now) + duration)

    def _do_stream_wait(self, stream: str, other: str) -> None:
        self._streams[stream] = self._join(self._tail(stream), self._tail(other))

    def _do_comm(self, name: str, ranks: list[int], backend: str) -> None:
        self.records.append(wire.Comm(name, ranks, Backend(backend), name))

    def _do_collective(
        self, comm: str, kind: str, size: int, stream: str, clock: int = 0, **extra: Any
    ) -> None:
        ready = self._join(self._tail(stream), self._tail("comm " + comm))
        seq = self._seq[comm] = self._seq.get(comm, 0) + 1
        node = self._new_node()
        if clock:
            self.records.append(wire.Clock(clock, self.now))
            self.now += 500
        self.records.append(
            wire.Collective(
                node,
                comm,
                seq,
                CollectiveKind(kind),
                "float32",
                size,
                -1,
                Tail(*ready),
                clock,
                self.now,
                **extra,
            )
        )
        if clock:
            self.records.append(wire.Clock(0, self.now))
            self.records.append(wire.ClockEnd(clock))
        self.operations.append(node)
        self._streams["comm " + comm] = (node, 0, 0)

    def _do_valued(self, comm: str, kind: str, size: int, extra: dict[str, Any]) -> None:
        self._do_collective(comm, kind, size, "compute", **extra)

    def _do_p2p(self, comm: str, entries: list[tuple[int, bool, int]], group_rank: int, stream: str) -> None:
        ready = self._join(self._tail(stream), self._tail("comm " + comm))
        node = self._new_node()
        sides = []
        for peer, is_send, size in entries:
            pair = (comm, group_rank, peer) if is_send else (comm, peer, group_rank)
            seq = self._seq[pair, is_send] = self._seq.get((pair, is_send), 0) + 1
            sides.append(Side(peer, is_send, seq, size, "float32"))
        self.records.append(wire.P2P(node, comm, Tail(*ready), 0, self.now, sides, "p.py:1"))
        self.operations.append(node)
        self._streams["comm " + comm] = (node, 0, 0)

    def _do_transfer(self, direction: str, size: int, stream: str) -> None:
        node = self._new_node()
        self.records.append(
            wire.Transfer(node, Direction(direction), size, True, Tail(*self._tail(stream)), 0, self.now)
        )
        self.operations.append(node)
        self._streams[stream] = (node, 0, 0)

    def _do_sync(self, stream: str) -> None:
        tail = self._tail(stream)
        request = self._request(self._set_now)
        self.records.append(wire.Sync(request, 0, Tail(*tail), self.now, f"synchronize {stream}"))

    def _do_query(self, stream: str, if_done: int, if_not: int) -> None:
        def after(value: int) -> None:
            self.now += if_done if value else if_not

        tail = self._tail(stream)
        request = self._request(after)
        self.records.append(wire.Query(request, 0, Tail(*tail), self.now))

    def _do_post(self, key: str) -> None:
        self.records.append(wire.Post(key, 0, self.now))

    def _do_wait(self, keys: list[str]) -> None:
        request = self._request(self._set_now)
        self.records.append(wire.Wait(request, 0, keys, self.now, "store.wait"))

    def _do_add(self, key: str, amount: int, result: int) -> None:
        request = self._request(self._set_now)
        self.records.append(wire.Add(request, 0, key, amount, result, self.now))

    def _do_step(self, index: int) -> None:
        self.records.append(wire.Step(index, Tail(*self._tail("compute")), 0, self.now))
