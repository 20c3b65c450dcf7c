"""Store causality: who goes on when."""

from __future__ import annotations

from engine_talk import Talk, collective, comm

from phantom.wire import schema as wire
from phantom.wire.fields import Tail


def post(key: str, now: int) -> list[object]:
    return wire.Post(key, 0, now)


def wait(request: int, keys: list[str], now: int) -> list[object]:
    return wire.Wait(request, 0, keys, now, "store.wait")


def test_waiter_resumes_at_the_post() -> None:
    talk = Talk(2)
    assert talk.say(0, wait(1, ["k"], 10)) == {}
    assert talk.say(1, post("k", 700), wire.Clock(0, 800)) == {0: [wire.Answer(1, 700)]}


def test_post_in_the_waiters_past() -> None:
    talk = Talk(2)
    talk.say(1, post("k", 700))
    assert talk.say(0, wait(1, ["k"], 900)) == {0: [wire.Answer(1, 900)]}


def test_a_slower_rank_may_still_post_earlier() -> None:
    talk = Talk(3)
    talk.say(0, wait(1, ["k"], 10))
    assert talk.say(1, post("k", 700), wire.Clock(0, 5000)) == {}  # rank 2 is still at 0
    assert talk.say(2, post("k", 300), wire.Clock(0, 301)) == {0: [wire.Answer(1, 300)]}


def test_a_rank_that_waits_for_a_query_may_still_post_earlier() -> None:
    talk = Talk(2)
    talk.say(0, comm("g", [0, 1]), collective(1, now=5), wire.Query(1, 0, Tail(1, 0, 0), 90))
    talk.say(1, wire.Post("k", 0, 900), wire.Wait(1, 0, ["k"], 95, "store.wait"))
    # Nobody runs now: the query comes first, and the rank that asked may post before 900.
    assert talk.say(0, wire.Post("k", 0, 100), wire.Clock(0, 200)) == {1: [wire.Answer(1, 100)]}


def test_all_keys_are_needed() -> None:
    talk = Talk(2)
    talk.say(0, wait(1, ["a", "b", "a"], 10))
    assert talk.say(1, post("a", 50), wire.Clock(0, 60)) == {}
    assert talk.say(1, post("b", 40), wire.Clock(0, 70)) == {0: [wire.Answer(1, 50)]}


def test_counter_answers_with_the_latest_of_the_adders() -> None:
    talk = Talk(3)
    assert talk.say(0, wire.Add(1, 0, "n", 1, 3, 10)) == {}
    assert talk.say(1, wire.Add(1, 0, "n", 1, 1, 900)) == {1: [wire.Answer(1, 900)]}
    replies = talk.say(2, wire.Add(1, 0, "n", 1, 2, 50))
    assert replies == {0: [wire.Answer(1, 900)], 2: [wire.Answer(1, 900)]}
    assert talk.say(0, wire.Add(2, 0, "n", 0, 3, 950)) == {0: [wire.Answer(2, 950)]}  # adding nothing reads


def test_counter_that_did_not_start_at_zero() -> None:
    talk = Talk(1)
    assert talk.say(0, wire.Add(1, 0, "n", 1, 6, 10)) == {0: [wire.Answer(1, 10)]}


def test_adding_is_a_post() -> None:
    talk = Talk(2)
    talk.say(0, wait(1, ["n"], 5))
    replies = talk.say(1, wire.Add(1, 0, "n", 1, 1, 40), wire.Clock(0, 50))
    assert replies[0] == [wire.Answer(1, 40)]


def test_deleted_key_does_not_satisfy_later_waits() -> None:
    talk = Talk(2)
    talk.say(1, post("k", 10), wire.Clock(0, 20), wire.Forget("k"), wire.Clock(0, 30))
    assert talk.say(0, wait(1, ["k"], 100)) == {}
    assert talk.say(1, post("k", 500), wire.Clock(0, 600)) == {0: [wire.Answer(1, 500)]}


def test_deletion_that_overtakes_a_waiter() -> None:
    # The real wait was over before the deletion; only the records arrive the other way round.
    talk = Talk(2)
    talk.say(1, post("k", 10), wire.Clock(0, 60), wire.Forget("k"))
    assert talk.say(0, wait(1, ["k"], 50)) == {0: [wire.Answer(1, 50)]}
    talk.say(1, wire.Bye())
    assert talk.say(0, wait(2, ["k"], 70)) == {
        0: [wire.Answer(2, 70)]
    }  # later, but nobody else could have been meant


def test_key_from_outside_the_job() -> None:
    talk = Talk(1)
    assert talk.say(0, wait(1, ["launcher"], 30)) == {}
    assert talk.say(0, wire.Waited(1)) == {0: [wire.Answer(1, 30)]}


def test_a_wait_that_was_given_up_does_not_let_time_run_away() -> None:
    talk = Talk(2)
    for rank in range(2):
        talk.say(rank, comm("g", [0, 1]), collective(1))
    talk.say(0, wait(1, ["never"], 200))
    talk.say(1, wire.Sync(1, 0, Tail(1, 0, 0), 300, "synchronize"))  # ends at 12100 while rank 0 is blocked
    talk.say(0, wire.Clock(0, 5_000))  # the real wait timed out
    assert talk.engine.horizon_ps() == 5_000


def test_long_counters_are_bounded() -> None:
    talk = Talk(1)
    for index in range(1, 10_000):
        replies = talk.say(0, wire.Add(index, 0, "n", 1, index, 10 * index))
        assert replies == {0: [wire.Answer(index, 10 * index)]}
