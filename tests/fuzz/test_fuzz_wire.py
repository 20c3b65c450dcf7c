"""Batches from a rank: the engine ends the job with a sentence or goes on; the summary stays readable."""

from __future__ import annotations

import json
from typing import Any

import msgpack
from hypothesis import given
from hypothesis import strategies as st

from fuzz.limits import FUZZ
from fuzz.mutation import changed, damaged
from netsim.cluster import load_cluster
from netsim.network import Network
from phantom.engine import Engine
from phantom.results.run_summary import plain
from phantom.results.summary import summarize
from phantom.wire.limits import PROTOCOL
from phantom.wire.records import decode

CLUSTER = load_cluster("h100-dgx")
TAIL = [0, 0, 5000]
NONE = [None] * 3
VALUE = ["float32", 2, False, bytes(8)]
STATS = {
    "steps": [[0, 9, 3, 3, 3]],
    "ops": 3,
    "kernels": {"gemm": [1, 5]},
    "top": [["mm", "predicted", 1, 5, "gemm"]],
}


def conversation(rank: int) -> list[Any]:
    """What a rank of two says in a short job: each kind of record once or more."""
    return [
        [1, PROTOCOL, rank, 2, rank, 0, 17],
        [2, 0, 1000],
        [6, "g", [0, 1], "nccl", "world"],
        [5, 1, "g", 0, "all_reduce", "float32", 1 << 20, -1, TAIL, 0, 6000, VALUE, "a:1", True, "sum", *NONE],
        [5, 2, "g", 1, "all_to_all", "float32", 16, -1, [1, 5, 0], 0, 6000, None, "", False, None, None,
         [1, 3], [1, 3]],
        [4, 3, [[1, 10], [2, 20]], 7000],
        [7, 4, "g", [3, 0, 0], 0, 7000, [[1 - rank, rank == 0, 0, 64, "int8", None, False]], "b.py:2"],
        [18, 5, "h2d", 1 << 22, True, TAIL, 0, 8000],
        [5, 6, "g", 2, "broadcast", "float32", 8, 0, TAIL, 0, 8000, "later", "", True, None, *NONE],
        [19, 6, 0, VALUE],
        [10, f"key{rank}", 0, 8000],
        [11, 1, 0, [f"key{1 - rank}"], 8000, "store.wait"],
        [20, 1],
        [13, 2, 0, "n", 1, rank + 1, 8000],
        [12, f"key{rank}"],
        [2, 1, 100],
        [3, 1],
        [9, 3, 0, [2, 0, 0], 9000],
        [14, 0, [3, 0, 0], 0, 9000],
        [8, 4, 0, [5, 0, 0], 9000, "synchronize"],
        [15, STATS],
        [16, {"kind": "oom", "device": 0, "requested_bytes": 1, "capacity_bytes": 1, "allocated_bytes": 1,
              "reserved_bytes": 1, "now_ps": 1, "holders": {"other": 1}}],
        [17],
    ]  # fmt: skip


def packed(document: Any) -> bytes:
    """The document as msgpack; what that cannot hold becomes text."""

    def plain(value: Any) -> Any:
        if isinstance(value, int) and not -(2**63) <= value < 2**64:
            return str(value)[:50]
        if isinstance(value, str):
            return value.encode("utf-8", "surrogatepass").decode("utf-8", "replace")
        if isinstance(value, list):
            return [plain(each) for each in value]
        if isinstance(value, dict):
            return {plain(key): plain(each) for key, each in value.items()}
        return value

    return bytes(msgpack.packb(plain(document)))


@st.composite
def batches(draw: st.DrawFn) -> list[tuple[int, bytes]]:
    """The batches of two ranks, some of them hostile."""
    said = []
    for rank in (0, 1):
        records = conversation(rank)
        cut = draw(st.integers(1, len(records)))
        for part in (records[:cut], records[cut:]):
            kind = draw(st.sampled_from(("good", "good", "changed", "changed", "damaged", "noise")))
            data = packed(draw(changed(part)) if kind == "changed" and part else part)
            if kind == "damaged":
                data = draw(damaged(data))
            elif kind == "noise":
                data = draw(st.binary(max_size=200))
            said.append((rank, data))
    return draw(st.permutations(said))


@FUZZ
@given(said=batches(), acked=st.integers(0, 2**64 - 1))
def test_the_engine_survives_what_ranks_say(said: list[tuple[int, bytes]], acked: int) -> None:
    network = Network(CLUSTER, nodes=1, gpus_per_node=2, environment={}, seed=0)
    engine = Engine(network, world_size=2, now=lambda: 0.0)
    for rank, data in said:
        engine.feed(rank, data, acked)
        engine.run()
        while engine.run_ahead(8):
            pass
        for sent in engine.poll(flush=True).values():
            assert all(sent)
    if engine.failure is not None:
        assert engine.failure.message
        assert len(engine.failure.message) < 5000
    summary = summarize(
        engine,
        network=network,
        cluster="h100-dgx",
        nodes=1,
        command=("x.py",),
        statuses={},
        interrupted=False,
        wall_s=1.0,
    )
    json.dumps(plain(summary), allow_nan=False)


@FUZZ
@given(st.binary(max_size=400) | st.just(conversation(0)).flatmap(changed).map(packed).flatmap(damaged))
def test_decoding_never_raises(data: bytes) -> None:
    decoded = decode(data)
    assert decoded.error is None or str(decoded.error)


def test_the_conversation_itself_is_good() -> None:
    for rank in (0, 1):
        assert decode(packed(conversation(rank))).error is None
