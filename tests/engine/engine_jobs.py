"""Random jobs that cannot deadlock, and random drivers that deliver their messages in any order."""

from __future__ import annotations

import random
from typing import Any

from engine_client import Action, Client

from phantom.engine import Engine, EngineOptions

STREAMS = ("compute", "side")


def make_programs(seed: int, world: int, length: int, *, scale: int = 1) -> list[list[Action]]:
    """One program per rank. Shared actions have one global order, so that none waits in a cycle."""
    rng = random.Random(seed)
    groups: list[tuple[str, list[int], str]] = [("world", list(range(world)), "nccl")]
    for index in range(rng.randint(0, 3)):
        members = sorted(rng.sample(range(world), rng.randint(1, world)))
        groups.append((f"group{index}", members, rng.choice(["nccl", "nccl", "gloo"])))
    programs: list[list[Action]] = [[] for _ in range(world)]
    for name, members, backend in groups:
        for rank in members:
            programs[rank].append(("comm", name, members, backend))
    posted: list[str] = []
    counter = [0] * world
    total = 0
    for index in range(length):
        for program in programs:
            if rng.random() < 0.5:
                program.append(_local(rng, scale))
        name, members, backend = rng.choice(groups)
        what = rng.random()
        if what < 0.45:
            size = scale * rng.choice([0, 10, 1_000, 3_000])
            kind = rng.choice(["all_reduce", "all_gather", "barrier"])
            for rank in members:
                stream = rng.choice(STREAMS)
                clock = rng.choice([0, 0, 0, 1])
                programs[rank].append(("collective", name, kind, size, stream, clock))
                if rng.random() < 0.7:
                    programs[rank].append(("stream_wait", stream, "comm " + name))
        elif what < 0.65 and len(members) > 1 and backend == "nccl":
            left, right = rng.sample(range(len(members)), 2)
            sizes = [scale * rng.choice([5, 2_000]) for _ in range(rng.randint(1, 2))]
            both = rng.random() < 0.5
            there = [(right, True, size) for size in sizes] + ([(right, False, 77)] if both else [])
            back = [(left, False, size) for size in sizes] + ([(left, True, 77)] if both else [])
            programs[members[left]].append(("p2p", name, there, left, "compute"))
            programs[members[right]].append(("p2p", name, back, right, "compute"))
            programs[members[right]].append(("stream_wait", "compute", "comm " + name))
        elif what < 0.75:
            key = f"key{index}"
            for rank in rng.sample(range(world), rng.randint(1, world)):
                programs[rank].append(("post", key))
            posted.append(key)
        elif what < 0.85 and posted:
            keys = rng.sample(posted, rng.randint(1, min(2, len(posted))))
            programs[rng.randrange(world)].append(("wait", keys))
        elif what < 0.9:
            total += 1
            programs[rng.randrange(world)].append(("add", "counter", 1, total))
        else:
            for rank, program in enumerate(programs):
                program.append(("step", counter[rank]))
                counter[rank] += 1
    for rank, program in enumerate(programs):
        program.append(("step", counter[rank]))
    return programs


def _local(rng: random.Random, scale: int) -> Action:
    kind = rng.choice(["kernel", "kernel", "cpu", "clock", "sync", "query", "stream_wait", "transfer"])
    stream = rng.choice(STREAMS)
    if kind == "kernel":
        return ("kernel", stream, scale * rng.choice([1, 3_000, 20_000]))
    if kind == "cpu":
        return ("cpu", scale * rng.choice([1, 10_000]))
    if kind == "clock":
        return ("clock",)
    if kind == "sync":
        return ("sync", rng.choice([*STREAMS, "comm world"]))
    if kind == "query":
        return ("query", rng.choice([*STREAMS, "comm world"]), rng.choice([0, 700]), 5_000)
    if kind == "transfer":
        return ("transfer", rng.choice(["h2d", "d2h"]), 500, stream)
    return ("stream_wait", stream, rng.choice([other for other in STREAMS if other != stream]))


class Outcome:
    """What must not depend on the order of messages."""

    def __init__(self, engine: Engine | None, clients: list[Client], steps: dict[int, int]) -> None:
        self.engine = engine
        self.steps = steps
        self.answers = [client.answers for client in clients]
        self.now = [client.now for client in clients]
        # Which joins exist depends on what a client knew when it made them; operations do not.
        self.ends = [[client.ends[node] for node in client.operations] for client in clients]


def drive(
    programs: list[list[Action]],
    network: Any,
    *,
    seed: int,
    lookahead: bool,
    simplify: bool = True,
) -> Outcome:
    """Runs the programs against an engine, with the real-time order of everything drawn from `seed`."""
    rng = random.Random(seed)
    world = len(programs)
    clients = [Client(rank, world, program, simplify=simplify) for rank, program in enumerate(programs)]
    engine = Engine(network, world_size=world, options=EngineOptions(lookahead=lookahead), now=lambda: 0.0)
    inbox: list[list[bytes]] = [[] for _ in range(world)]
    style = rng.choice(["fair", "eager", "starve"])
    favourite = rng.randrange(world)
    for _ in range(200_000):
        choices = [client for client in clients if client.records or inbox[client.rank] or _can_step(client)]
        if not choices:
            break
        client = rng.choice(choices)
        if style == "eager":
            client = choices[0]
        elif style == "starve" and rng.random() < 0.95:
            others = [other for other in choices if other.rank != favourite]
            client = rng.choice(others or choices)
        inputs = inbox[client.rank]
        if inputs and rng.random() < 0.6:
            client.receive(inputs.pop(0))
        elif _can_step(client) and (rng.random() < 0.6 or not client.records):
            client.step()
        elif client.records:
            count = rng.randint(1, len(client.records))
            # Records left behind may still name nodes that an acknowledgement would let the engine forget.
            acked = client.received if count == len(client.records) else 0
            engine.feed(client.rank, client.take(count), acked)
            if rng.random() < 0.8:
                engine.run()
            if lookahead and rng.random() < 0.7:
                engine.run_ahead(rng.randint(1, 8))
        engine.run()
        for rank, batches in engine.poll(flush=rng.random() < 0.3).items():
            inbox[rank] += batches
    engine.run()
    for rank, batches in engine.poll(flush=True).items():
        for batch in inbox[rank] + batches:
            clients[rank].receive(batch)
    assert engine.failure is None, engine.failure.message
    assert all(client.over for client in clients), engine.describe_deadlock()
    return Outcome(engine, clients, dict(engine.statistics.step_end_ps))


def _can_step(client: Client) -> bool:
    return client.blocked is None and not client.over
