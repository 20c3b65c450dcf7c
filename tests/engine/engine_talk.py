"""Short conversations with an engine, record by record."""

from __future__ import annotations

from typing import Any

from engine_networks import FixedNetwork, ReplayNetwork

from phantom.engine import Engine, EngineOptions
from phantom.wire import schema as wire
from phantom.wire.fields import Backend, CollectiveKind, Side, Tail
from phantom.wire.limits import PROTOCOL
from phantom.wire.records import pack, unpack

NOW = Tail(0, 0, 0)


class Talk:
    """An engine whose first `world` ranks have said HELLO; real time is `seconds` and only moves by hand.

    `ranks`: size of the job where not all have attached.
    """

    def __init__(
        self, world: int, *, ranks: int | None = None, network: ReplayNetwork | None = None, **options: Any
    ) -> None:
        self.seconds = 0.0
        self.engine = Engine(
            network or FixedNetwork(),
            world_size=ranks or world,
            options=EngineOptions(**options),
            now=lambda: self.seconds,
        )
        for rank in range(world):
            self.say(rank, hello(rank, ranks or world))

    def say(self, rank: int, *records: wire.Record) -> dict[int, list[wire.Record]]:
        """Sends records of one rank; returns all replies by rank, without WELCOME."""
        self.engine.feed(rank, pack(*records))
        return self.listen()

    def listen(self) -> dict[int, list[wire.Record]]:
        """Runs the engine and returns the replies."""
        self.engine.run()
        replies: dict[int, list[wire.Record]] = {}
        for rank, batches in self.engine.poll(flush=True).items():
            found = [record for batch in batches for record in unpack(batch)]
            found = [record for record in found if not isinstance(record, wire.Welcome)]
            if found:
                replies[rank] = found
        return replies

    def wait(self, seconds: float) -> dict[int, list[wire.Record]]:
        """Lets real time pass."""
        self.seconds += seconds
        self.engine.tick()
        return self.listen()

    def failure(self) -> tuple[str, str]:
        """Kind and message the job was ended with."""
        assert self.engine.failure is not None
        return self.engine.failure.kind, self.engine.failure.message


def hello(rank: int, world: int, *, protocol: int = PROTOCOL) -> wire.Hello:
    return wire.Hello(protocol=protocol, rank=rank, world_size=world)


def comm(name: str, ranks: list[int], backend: str = "nccl") -> wire.Comm:
    return wire.Comm(name, ranks, Backend(backend), name)


def collective(node: int, seq: int = 1, **changes: Any) -> wire.Collective:
    """An all_reduce of 1000 bytes in group "g", ready at 0, posted at 100."""
    given: dict[str, Any] = {
        "comm": "g",
        "kind": "all_reduce",
        "dtype": "float32",
        "size": 1000,
        "root": -1,
        "tail": [0, 0, 0],
        "now": 100,
        "where": "train.py:1",
        **changes,
    }
    now_ps, kind, size_bytes = given.pop("now"), CollectiveKind(given.pop("kind")), given.pop("size")
    return wire.Collective(
        node=node, seq=seq, kind=kind, size_bytes=size_bytes, ready=Tail(*given.pop("tail")), clock=0,
        now_ps=now_ps, **given,
    )  # fmt: skip


def sync(request: int, tail: list[int], now: int = 200, why: str = "synchronize at train.py:2") -> wire.Sync:
    return wire.Sync(request, 0, Tail(*tail), now, why)


def p2p(
    node: int, entries: list[list[Any]], now: int = 100, where: str = "pipe.py:3", tail: Tail = NOW
) -> wire.P2P:
    return wire.P2P(node, "g", tail, 0, now, [Side(*entry) for entry in entries], where)
