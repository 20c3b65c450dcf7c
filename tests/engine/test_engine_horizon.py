"""The horizon: what is answered when, and what is not."""

from __future__ import annotations

import gc

from engine_networks import FixedNetwork, SharedNetwork
from engine_talk import Talk, collective, comm, hello, p2p, sync

from phantom.engine import Engine
from phantom.engine.graph import Event, Node
from phantom.engine.operations import PendingOperation, Post
from phantom.wire import schema as wire
from phantom.wire.fields import Dependency, Payload, Tail
from phantom.wire.records import pack, unpack

END = 100 + 5_000 + 7_000


def test_nothing_ends_before_every_clock_has_passed_it() -> None:
    talk = Talk(3)
    for rank in range(2):
        talk.say(rank, comm("g", [0, 1]), collective(1))
    assert talk.say(0, sync(1, [1, 0, 0])) == {}
    assert talk.say(1, sync(1, [1, 50, 0])) == {}
    assert talk.say(2, wire.Clock(0, END)) == {}  # at that very time it might still start something
    replies = talk.say(2, wire.Clock(0, END + 1))
    assert replies == {
        0: [wire.Resolved([1, END]), wire.Answer(1, END)],
        1: [wire.Resolved([1, END]), wire.Answer(1, END + 50)],
    }


def test_a_rank_that_has_not_attached_holds_everything() -> None:
    engine = Engine(FixedNetwork(), world_size=2, now=lambda: 0.0)
    alone = collective(1)
    engine.feed(0, pack(hello(0, 2), comm("g", [0]), alone, sync(1, [1, 0, 0])))
    engine.run()
    assert not any(isinstance(record, wire.Answer) for batch in engine.poll()[0] for record in unpack(batch))
    engine.exited(1, 0)  # it never will
    engine.run()
    assert any(isinstance(record, wire.Answer) for batch in engine.poll()[0] for record in unpack(batch))


def test_what_holds_time_back_has_a_name() -> None:
    engine = Engine(FixedNetwork(), world_size=2, now=lambda: 0.0)
    engine.feed(0, pack(hello(0, 2)))
    engine.run()
    assert engine.awaited() == "rank 0, whose clock is at 0.000000 s"
    engine.exited(0, 0)
    engine.run()
    assert engine.awaited() == "rank 1, which has not attached yet"
    engine.exited(1, 0)
    engine.run()
    assert engine.awaited() == "the processes to end"


def test_known_tails_are_answered_at_once() -> None:
    talk = Talk(2)
    assert talk.say(0, sync(1, [0, 0, 9_000])) == {0: [wire.Answer(1, 9_000)]}
    assert talk.say(0, sync(2, [0, 0, 100], now=9_500)) == {0: [wire.Answer(2, 9_500)]}


def test_query_waits_for_the_horizon_and_sees_the_past_only() -> None:
    talk = Talk(2, network=SharedNetwork())
    for rank in range(2):
        talk.say(rank, comm("g", [0, 1]), collective(1))
    end = 100 + 5_500
    assert talk.say(0, wire.Query(1, 0, Tail(1, 0, 0), end - 1)) == {}
    assert talk.say(1, wire.Clock(0, 3_000)) == {}
    replies = talk.say(1, wire.Clock(0, end + 10))
    assert replies[0] == [wire.Answer(1, 0)]
    replies = talk.say(0, wire.Query(2, 0, Tail(1, 0, 0), end))
    assert wire.Answer(2, 1) in replies[0]


def test_silent_thread_clock_is_taken_out_with_a_warning() -> None:
    talk = Talk(2)
    for rank in range(2):
        talk.say(rank, comm("g", [0, 1]), collective(1))
    talk.say(0, wire.Clock(7, 100), sync(1, [1, 0, 0]))
    assert talk.say(1, sync(1, [1, 0, 0])) == {}
    assert talk.wait(0.9) == {}
    replies = talk.wait(0.2)
    assert wire.Answer(1, END) in replies[0]
    assert sum(talk.engine.statistics.warnings.values()) == 1
    assert "thread's clock was silent" in next(iter(talk.engine.statistics.warnings))
    # It speaks again, in the past: moved up and counted.
    talk.say(0, collective(2, comm="g", seq=2, now=50))
    assert any("taken out of the horizon" in text for text in talk.engine.statistics.warnings)


def test_a_thread_that_issued_nothing_may_be_joined_long_after_it_began() -> None:
    talk = Talk(2)
    for rank in range(2):
        talk.say(rank, comm("g", [0, 1]), collective(1), sync(1, [1, 0, 0]))
    talk.say(0, wire.Clock(7, 50), wire.Wait(2, 0, ["ended"], END, "Thread.join"))
    replies = talk.say(0, wire.Post("ended", 7, 50), wire.ClockEnd(7))
    assert wire.Answer(2, END) in replies[0]
    assert not talk.engine.statistics.warnings
    talk.say(0, collective(2, comm="g", seq=2, now=50))
    assert any("taken out of the horizon" in text for text in talk.engine.statistics.warnings)


def test_main_clock_is_trusted_for_longer() -> None:
    talk = Talk(3)
    for rank in range(2):
        talk.say(rank, comm("g", [0, 1]), collective(1), sync(1, [1, 0, 0]))
    assert talk.wait(29.0) == {}
    replies = talk.wait(2.0)
    assert wire.Answer(1, END) in replies[0]
    assert any("MAIN CLOCK" in text and "rank 2" in text for text in talk.engine.statistics.warnings)


def test_a_rank_that_never_attaches_is_given_up_late() -> None:
    talk = Talk(1, ranks=2)
    talk.say(0, comm("g", [0]), collective(1), sync(1, [1, 0, 0]))
    assert talk.wait(299.0) == {}
    assert wire.Answer(1, END) in talk.wait(2.0)[0]
    assert any("used no device" in text and "rank 1" in text for text in talk.engine.statistics.warnings)


def test_a_busy_main_clock_with_nothing_pending_is_left_alone() -> None:
    talk = Talk(2)
    talk.say(0, comm("g", [0, 1]), collective(1), sync(1, [1, 0, 0]))
    assert talk.wait(1000.0) == {}
    assert talk.engine.failure is None
    assert not talk.engine.statistics.warnings


def test_silent_thread_does_not_hide_a_deadlock_for_ever() -> None:
    talk = Talk(2)
    talk.say(0, wire.Clock(7, 5), comm("g", [0, 1]), collective(1), sync(1, [1, 0, 0]))
    talk.say(1, wire.Bye())
    talk.wait(20.0)
    assert talk.engine.failure is None
    talk.wait(11.0)
    talk.wait(31.0)
    assert talk.failure()[0] == "deadlock"


def test_values_do_not_wait_for_virtual_time() -> None:
    talk = Talk(3)
    one = Payload("int64", 1, True, (1).to_bytes(8, "little"))
    talk.say(0, comm("g", [0, 1]), collective(1, size=8, dtype="int64", value=one, want=True))
    replies = talk.say(1, comm("g", [0, 1]), collective(1, size=8, dtype="int64", value=one))
    assert replies == {0: [wire.ValueOf(1, 0, Payload("int64", 1, True, (2).to_bytes(8, "little")))]}


def test_message_value_goes_to_the_receiver() -> None:
    talk = Talk(2)
    value = Payload("int8", 2, False, b"\x05\x06")
    talk.say(0, comm("g", [0, 1]))
    talk.say(1, comm("g", [0, 1]))
    send = p2p(1, [[1, True, 1, 2, "int8", value, False]])
    receive = p2p(1, [[0, False, 2, 2, "int8", None, True], [0, False, 1, 2, "int8", None, True]])
    talk.say(0, send)
    assert talk.say(1, receive) == {1: [wire.ValueOf(1, 1, value)]}


def test_smaller_world_than_the_job() -> None:
    engine = Engine(FixedNetwork(), world_size=8, now=lambda: 0.0)
    for rank in range(2):
        engine.feed(rank, pack(hello(rank, 2), wire.Bye()))
    engine.run()
    assert engine.world_size == 2
    assert engine.finished()


def test_memory_is_flat_over_a_long_job() -> None:
    talk = Talk(2)
    for rank in range(2):
        talk.say(rank, comm("g", [0, 1]))
    sizes, objects = [], []
    batches = [0, 0]
    for step in range(300):
        now = 20_000 * (step + 1)
        for rank in range(2):
            node = 3 * step + 1
            records = [
                collective(node, seq=2 * step + 1, now=now),
                wire.Node(node + 1, [Dependency(node, 5)], now),
                collective(node + 2, seq=2 * step + 2, now=now, tail=[node + 1, 10, 0]),
                wire.Step(step, Tail(node + 2, 0, 0), 0, now),
                sync(step + 1, [node + 2, 0, 0], now),
            ]
            talk.engine.feed(rank, pack(*records), batches[rank])
            talk.engine.run()
            for other, sent in talk.engine.poll(flush=True).items():
                batches[other] += len(sent)
        if step % 50 == 49:
            gc.collect()
            sizes.append(talk.engine.node_count())
            kept = (Node, PendingOperation, Post, Event)
            objects.append(sum(type(thing) in kept for thing in gc.get_objects()))
    assert max(sizes[1:]) <= sizes[0] <= 12
    assert max(objects[1:]) <= objects[0] + 5
