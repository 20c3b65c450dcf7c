"""Short conversations with an engine, record by record."""

from __future__ import annotations

from typing import Any

from engine_networks import FixedNetwork, ReplayNetwork

from phantom.engine import Engine, EngineOptions
from phantom.wire.records import pack, unpack


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
            self.say(rank, [1, {"rank": rank, "world_size": ranks or world, "protocol": 1}])

    def say(self, rank: int, *records: list[Any]) -> dict[int, list[list[Any]]]:
        """Sends records of one rank; returns all replies by rank, without WELCOME."""
        self.engine.feed(rank, pack(*records))
        return self.listen()

    def listen(self) -> dict[int, list[list[Any]]]:
        """Runs the engine and returns the replies."""
        self.engine.run()
        replies: dict[int, list[list[Any]]] = {}
        for rank, batches in self.engine.poll(flush=True).items():
            found = [record for batch in batches for record in unpack(batch) if record[0] != 1]
            if found:
                replies[rank] = found
        return replies

    def wait(self, seconds: float) -> dict[int, list[list[Any]]]:
        """Lets real time pass."""
        self.seconds += seconds
        self.engine.tick()
        return self.listen()

    def failure(self) -> tuple[str, str]:
        """Kind and message the job was ended with."""
        assert self.engine.failure is not None
        return self.engine.failure.kind, self.engine.failure.message


def comm(name: str, ranks: list[int], backend: str = "nccl") -> list[Any]:
    return [6, name, ranks, backend, name]


def collective(node: int, seq: int = 1, **changes: Any) -> list[Any]:
    """An all_reduce of 1000 bytes in group "g", ready at 0, posted at 100."""
    given: dict[str, Any] = {
        "comm": "g",
        "kind": "all_reduce",
        "dtype": "float32",
        "size": 1000,
        "root": -1,
        "tail": [0, 0, 0],
        "now": 100,
        "value": None,
        "where": "train.py:1",
    }
    extra = {key: changes.pop(key) for key in ("op", "want", "in_splits", "out_splits") if key in changes}
    given.update(changes)
    extra["where"] = given["where"]
    return [
        5, node, given["comm"], seq, given["kind"], given["dtype"], given["size"], given["root"],
        given["tail"], 0, given["now"], given["value"], extra,
    ]  # fmt: skip


def sync(request: int, tail: list[int], now: int = 200, why: str = "synchronize at train.py:2") -> list[Any]:
    return [8, request, 0, tail, now, why]


def p2p(node: int, entries: list[list[Any]], now: int = 100, where: str = "pipe.py:3") -> list[Any]:
    return [7, node, "g", [0, 0, 0], 0, now, entries, where]
