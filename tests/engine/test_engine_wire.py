"""Batches survive the trip; broken ones are refused, by record, field and value."""

from __future__ import annotations

import math
from typing import Any

import msgpack
import pytest
from engine_talk import Talk, comm, hello

from phantom.wire import schema as wire
from phantom.wire import simulator_pb2, simulator_pb2_grpc
from phantom.wire.fields import Account, Dependency, Payload, SettledStep, Tail
from phantom.wire.limits import MAX_PS
from phantom.wire.records import WireError, decode, join, pack, unpack

GOOD = wire.Clock(0, 10**15)
TAIL = [0, 0, 0]


def test_records_round_trip() -> None:
    batch: list[wire.Record] = [
        GOOD,
        wire.Wait(1, 0, ["a"], 5, "why"),
        wire.Node(7, [Dependency(1, 2)], 3),
        wire.Supply(1, 0, Payload("bfloat16", 2, False, bytes(4))),
        wire.Stats(Account(steps=[SettledStep(0, 5, 1, 1, 1)], ops=2)),
        wire.Bye(),
    ]
    assert decode(pack(*batch)) == (batch, None)


@pytest.mark.parametrize("cut", range(1, 15))
def test_what_stands_before_the_end_of_a_truncated_batch_counts(cut: int) -> None:
    data = pack(GOOD, wire.Clock(0, 10**16))
    records, error = decode(data[:-cut])
    assert records == ([GOOD] if cut <= 12 else [])
    assert "ends inside record" in str(error)


def test_bytes_after_a_batch_are_refused() -> None:
    records, error = decode(pack(GOOD) + b"\x01")
    assert records == [GOOD]
    assert "trailing" in str(error)


@pytest.mark.parametrize(
    ("record", "text"),
    [
        ([2, 0, 1 << 63], "CLOCK: field now_ps is 9223372036854775808: expected `int` <= "),
        ([2, 0, math.inf], "CLOCK: field now_ps is inf: expected `int`, got `float`"),
        ([2, 0, True], "CLOCK: field now_ps is True: expected `int`, got `bool`"),
        ([2, 0, -1], "CLOCK: field now_ps is -1: expected `int` >= 0"),
        ([8, 1, 0, [0, 0, 1 << 62], 1, "x"], "SYNC: field tail.bound_ps is 4611686018427387904"),
        ([14, 1 << 31, TAIL, 0, 1], "STEP: field index is 2147483648"),
        ([14, "1", TAIL, 0, 1], "STEP: field index is '1': expected `int`, got `str`"),
        ([15, {"junk": 1}], "STATS: field account is {'junk': 1}: object contains unknown field `junk`"),
        ([15, {"ops": math.nan}], "STATS: field account.ops is nan: expected `int`, got `float`"),
        ([15, {"steps": [[0, 1, 2, 3, -1]]}], "STATS: field account.steps[0]"),
        ([16, {"kind": "fire"}], "FAULT: field fault.kind is 'fire': invalid value 'fire'"),
        ([16, [1]], "FAULT: field fault is [1]: expected `object`, got `array`"),
        ([5, 1, "c", 1, "all_reduce", "float32", 4, -1, TAIL, 0, 1, None, "", False, "premul_sum", math.nan],
         "COLLECTIVE: field factor is nan: expected `float`"),
        ([5, 1, "c", 1, "all_reduce", "float32", 1 << 60, -1, TAIL, 0, 1], "COLLECTIVE: field size_bytes"),
        ([5, 1, "c", 1 << 27, "all_reduce", "float32", 4, -1, TAIL, 0, 1], "COLLECTIVE: field seq"),
        ([5, 1, "c", 1, "all_shuffle", "float32", 4, -1, TAIL, 0, 1], "COLLECTIVE: field kind is 'all_s"),
        ([19, 1, 0, ["float32", 2, False, b"abc"]], "SUPPLY: field value is ['float32', 2, False, b'abc']: "
         "3 bytes for 2 elements of float32"),
        ([19, 1, 0, ["object", 1, True, b""]], "values of dtype 'object' do not travel"),
        ([2, 0], "CLOCK: expected `array` of at least length 3, got 2"),
        ([99], "sends a record of unknown type 99"),
        ([], "sends [] where a record belongs"),
        ("x" * 500, "where a record belongs"),
    ],
)  # fmt: skip
def test_a_field_out_of_its_range_is_named(record: Any, text: str) -> None:
    records, error = decode(join([msgpack.packb([2, 0, 10**15]), msgpack.packb(record)]))
    assert records == [GOOD]
    assert text in str(error)
    assert len(str(error)) < 400


@pytest.mark.parametrize("data", [b"", b"\xc1", b"\x05", b"\xdd\xff\xff\xff\xff", b"\x91" * 100_000, b"\x80"])
def test_what_is_no_batch_is_refused(data: bytes) -> None:
    assert decode(data).records == []
    assert decode(data).error is not None
    with pytest.raises(WireError):
        unpack(data)


def test_the_error_names_the_rank_and_what_came_before_counts() -> None:
    talk = Talk(2)
    talk.say(1, wire.Step(0, Tail(0, 0, 700), 0, 800))
    step = msgpack.packb([14, 0, [0, 0, 900], 0, 1000])
    talk.engine.feed(0, join([step, msgpack.packb([2, 0, 1 << 63])]))
    replies = talk.listen()
    kind, text = talk.failure()
    assert kind == "protocol"
    assert text.startswith("rank 0: CLOCK: field now_ps is 9223372036854775808")
    assert [type(record) for rank in (0, 1) for record in replies[rank]] == [wire.Abort, wire.Abort]
    assert talk.engine.statistics.step_end_ps == {0: 900}


def test_steps_follow_each_other() -> None:
    talk = Talk(1)
    for index in (0, 0, 1):
        talk.say(0, wire.Step(index, Tail(0, 0, 10), 0, 10))
    talk.say(0, wire.Step(10**9, Tail(0, 0, 20), 0, 20))
    assert "ends step 1000000000 after 2 steps" in talk.failure()[1]
    assert sorted(talk.engine.statistics.step_end_ps) == [0, 1]


@pytest.mark.parametrize("offset_ps", [MAX_PS, 5])
def test_time_has_an_end(offset_ps: int) -> None:
    talk = Talk(1)
    talk.say(0, comm("g", [0]), wire.Node(1, [], MAX_PS), wire.Node(2, [Dependency(1, offset_ps)], 0))
    assert "virtual time ends at" in talk.failure()[1]


def test_a_rank_says_who_it_is() -> None:
    talk = Talk(1, ranks=2)
    talk.say(1, hello(0, 2))
    assert "rank 1: says that it is rank 0" in talk.failure()[1]


def test_service_messages() -> None:
    batch = simulator_pb2.RankBatch(rank=3, records=b"xyz", acked=2**40)
    assert simulator_pb2.RankBatch.FromString(batch.SerializeToString()) == batch
    assert hasattr(simulator_pb2_grpc.SimulatorServicer, "Session")
