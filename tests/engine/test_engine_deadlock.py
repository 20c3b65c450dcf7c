"""Deadlocks and mismatches are reported at once, with rank, operation, group, number, peers and place."""

from __future__ import annotations

from typing import Any

import pytest
from engine_talk import Talk, collective, comm, p2p, sync

from phantom.wire import schema as wire
from phantom.wire.fields import AbortKind, Account, Dependency, Tail
from phantom.wire.limits import PROTOCOL

GROUP = comm("g", [0, 1, 2])


def everyone(talk: Talk, *records: list[Any]) -> None:
    for rank in range(3):
        talk.say(rank, *records)


def test_a_collective_called_by_some_ranks_only() -> None:
    talk = Talk(3)
    everyone(talk, GROUP)
    talk.say(0, collective(1), sync(1, [1, 0, 0]))
    talk.say(1, collective(1), sync(1, [1, 0, 0], why="Event.synchronize at eval.py:9"))
    replies = talk.say(2, wire.Bye())
    kind, text = talk.failure()
    assert kind == "deadlock"
    lines = text.splitlines()
    assert "rank 0: blocked in synchronize at train.py:2: all_reduce #1 of group 'g' (3 ranks" in lines[1]
    assert "1000 bytes of float32, called at train.py:1" in lines[1]
    assert "waits for rank 2, which has not called it" in lines[1]
    assert "blocked in Event.synchronize at eval.py:9" in lines[2]
    assert "rank 2: finished" in lines[3]
    assert {record.kind for rank in (0, 1) for record in replies[rank] if isinstance(record, wire.Abort)} == {
        "deadlock"
    }
    assert 2 not in replies


def test_nobody_waits_but_a_collective_is_left_over() -> None:
    talk = Talk(3)
    everyone(talk, GROUP)
    talk.say(0, collective(1), wire.Bye())
    talk.say(1, wire.Bye())
    assert talk.engine.failure is None
    talk.say(2, wire.Bye())
    assert talk.failure()[0] == "deadlock"
    assert "left behind: all_reduce #1 of group 'g'" in talk.failure()[1]


def test_sends_that_wait_for_each_other_on_one_stream() -> None:
    talk = Talk(2)
    for rank in range(2):
        talk.say(rank, comm("g", [0, 1]))
    for rank in range(2):
        other = 1 - rank
        first = p2p(1, [[other, True, 1, 8, "float32", None, False]])
        # Behind the first on the same stream.
        second = p2p(2, [[other, False, 1, 8, "float32", None, False]], tail=Tail(1, 0, 0))
        talk.say(rank, first, second, sync(1, [2, 0, 0]))
    kind, text = talk.failure()
    assert kind == "deadlock"
    assert "message #1 from rank 0 to rank 1 in group 'g' (8 bytes of float32, called at pipe.py:3)" in text
    assert "comes after another operation that cannot end" in text


def test_both_directions_in_one_launch_do_not_deadlock() -> None:
    talk = Talk(2)
    for rank in range(2):
        talk.say(rank, comm("g", [0, 1]))
    ends = []
    for rank in range(2):
        other = 1 - rank
        sides = [
            [other, True, 1, 8, "float32", None, False],
            [other, False, 1, 8, "float32", None, False],
        ]
        replies = talk.say(rank, p2p(1, sides), sync(1, [1, 0, 0]))
        answers = [record for records in replies.values() for record in records]
        ends += [record.value for record in answers if isinstance(record, wire.Answer)]
    assert ends == [100 + 5_000 + 56] * 2


def test_a_key_that_nobody_sets() -> None:
    talk = Talk(2, outside_grace_s=5.0)
    talk.say(0, wire.Wait(1, 0, ["a", "b"], 50, "store.get at rdzv.py:4"))
    talk.say(1, wire.Post("a", 0, 10), wire.Bye())
    assert talk.engine.failure is None  # a process outside the job might set it
    talk.wait(4.9)
    assert talk.engine.failure is None
    talk.wait(0.2)
    kind, text = talk.failure()
    assert kind == "deadlock"
    assert "rank 0: blocked in store.get at rdzv.py:4: waits for store keys that nobody has set: 'b'" in text


@pytest.mark.parametrize("key", ["phantom/thread/0/7/1", "phantom/future/0/7/1"])
def test_the_end_of_a_thread_that_waits_for_something_real(key: str) -> None:
    """A joined thread may write a checkpoint or wait for a process: no deadlock for a long while."""
    talk = Talk(2, outside_grace_s=5.0, stall_silence_s=30.0, join_grace_s=300.0)
    talk.say(0, wire.Wait(1, 0, [key], 50, "Thread.join at save.py:4"))
    talk.say(1, wire.Bye())
    talk.wait(299.0)
    assert talk.engine.failure is None
    talk.wait(2.0)
    kind, text = talk.failure()
    assert kind == "deadlock"
    assert "rank 0: blocked in Thread.join at save.py:4" in text


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"kind": "all_gather"}, "all_gather of 1000 bytes"),
        ({"dtype": "bfloat16"}, "of bfloat16"),
        ({"size": 4}, "all_reduce of 4 bytes"),
        ({"root": 1}, "root 1"),
        ({"op": "max"}, "max"),
    ],
)
def test_members_that_disagree(change: dict[str, Any], text: str) -> None:
    talk = Talk(3)
    everyone(talk, GROUP)
    talk.say(2, collective(1, where="a.py:1"))
    replies = talk.say(1, collective(1, where="b.py:2", **change))
    kind, message = talk.failure()
    assert kind == "mismatch"
    lines = message.splitlines()
    assert lines[0] == "collective #1 of group 'g' differs between ranks:"
    assert lines[1].startswith("  rank 1: ")
    assert text in lines[1]
    assert lines[1].endswith("at b.py:2")
    assert lines[2] == "  rank 2: all_reduce of 1000 bytes of float32 at a.py:1"
    assert sorted(replies) == [0, 1, 2]  # the rank that has posted nothing is told too


def test_barriers_do_not_compare_sizes() -> None:
    talk = Talk(3)
    everyone(talk, GROUP)
    for rank in range(3):
        talk.say(rank, collective(1, kind="barrier", size=rank, dtype=("float32", "int8", "int32")[rank]))
    assert talk.engine.failure is None


def test_messages_whose_sides_disagree() -> None:
    talk = Talk(2)
    for rank in range(2):
        talk.say(rank, comm("g", [0, 1]))
    talk.say(0, p2p(1, [[1, True, 1, 8, "float32", None, False]], where="send.py:1"))
    talk.say(1, p2p(1, [[0, False, 1, 16, "float32", None, False]], where="recv.py:1"))
    kind, text = talk.failure()
    assert kind == "mismatch"
    assert "rank 0 sends 8 bytes of float32 at send.py:1" in text
    assert "rank 1 receives 16 bytes of float32 at recv.py:1" in text


def test_all_to_all_splits_that_do_not_fit() -> None:
    talk = Talk(2)
    for rank in range(2):
        talk.say(rank, comm("g", [0, 1]))
    exchange: dict[str, Any] = {"kind": "all_to_all", "size": 16}
    talk.say(0, collective(1, in_splits=[1, 3], out_splits=[1, 2], **exchange))
    talk.say(1, collective(1, in_splits=[4, 0], out_splits=[3, 0], **exchange))
    kind, text = talk.failure()
    assert kind == "mismatch"
    assert "rank 1 sends 16 bytes to rank 0 at train.py:1, which expects 8 at train.py:1" in text


def test_groups_whose_members_disagree() -> None:
    talk = Talk(3)
    talk.say(0, comm("g", [0, 1]))
    talk.say(1, comm("g", [1, 0]))
    kind, text = talk.failure()
    assert kind == "mismatch"
    assert "rank 1 says nccl [1, 0], another member says nccl [0, 1]" in text


@pytest.mark.parametrize(
    "record",
    [
        wire.Node(1, [Dependency(7, 0)], 0),
        wire.Sync(1, 0, Tail(7, 0, 0), 0, "?"),
        wire.Sync(1, 0, Tail(0, -1, 0), 0, "?"),
        wire.Clock(0, 1 << 63),
        wire.Step(7, Tail(0, 0, 0), 0, 5),
        wire.Hello(protocol=PROTOCOL, rank=0, world_size=1),
        collective(1, root=5),
        collective(1, comm="unknown"),
    ],
)
def test_nonsense_ends_the_job_and_names_the_rank(record: wire.Record) -> None:
    talk = Talk(1)
    talk.say(0, record)
    kind, text = talk.failure()
    assert kind == "protocol"
    assert text.startswith("rank 0")


def test_lost_rank() -> None:
    talk = Talk(2)
    talk.engine.lost(1, "its process was killed")
    assert talk.listen() == {0: [wire.Abort(AbortKind.peer_lost, "rank 1 is gone: its process was killed")]}
    talk.say(0, wire.Stats(Account(ops=3)))
    assert talk.engine.statistics.ranks[0].latest.ops == 3  # partial results are still taken
