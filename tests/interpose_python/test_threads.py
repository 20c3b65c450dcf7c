"""Threads start at their creator's time and hand it back at join."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from interpose.time import threads
from interpose_python.fake_extension import FakeExtension

PS = 10**12


@pytest.fixture
def threaded(rank: FakeExtension, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeExtension]:
    """Wraps threading.Thread for one test."""
    saved = {name: getattr(threading.Thread, name) for name in ("start", "join", "_bootstrap_inner")}
    monkeypatch.setattr(threads, "_extension", None)
    threads.install(rank)
    yield rank
    for name, function in saved.items():
        setattr(threading.Thread, name, function)


def test_a_thread_starts_where_its_creator_was_and_join_goes_to_its_end(threaded: FakeExtension) -> None:
    threaded.clock_advance_ps(5 * PS)
    seen: list[int] = []

    def work() -> None:
        seen.append(threaded.clock_now_ps())
        threaded.clock_advance_ps(2 * PS)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [5 * PS]
    assert threaded.clock_now_ps() == 7 * PS


def test_joining_a_thread_that_ended_earlier_does_not_go_back(threaded: FakeExtension) -> None:
    thread = threading.Thread(target=threaded.clock_now_ps)
    thread.start()
    threaded.clock_advance_ps(9 * PS)
    thread.join()
    assert threaded.clock_now_ps() == 9 * PS


def test_a_thread_without_device_work_leaves_no_trace(threaded: FakeExtension) -> None:
    clocks = threaded.clocks
    thread = threading.Thread(target=lambda: None)
    thread.start()
    while thread.is_alive():
        pass
    thread.join()
    assert threaded.clocks == clocks
    assert threaded.clock_now_ps() == 0


def test_a_joined_thread_holds_its_place_before_its_first_work(threaded: FakeExtension) -> None:
    threaded.clock_advance_ps(3 * PS)
    joining = threading.Event()
    seen: list[int] = []

    def work() -> None:
        joining.wait()
        seen.append(threaded.clock_now_ps())

    thread = threading.Thread(target=work)
    thread.start()
    threading.Timer(0.05, joining.set).start()
    thread.join()
    assert ("clock_reserve", 3 * PS) in threaded.log
    assert seen == [3 * PS]


def test_subclasses_with_their_own_run_work(threaded: FakeExtension) -> None:
    class Worker(threading.Thread):
        def run(self) -> None:
            threaded.clock_advance_ps(PS)

    worker = Worker()
    worker.start()
    worker.join()
    assert threaded.clock_now_ps() == PS


def test_a_join_that_times_out_merges_nothing(threaded: FakeExtension) -> None:
    go = threading.Event()

    def work() -> None:
        threaded.clock_advance_ps(PS)
        go.wait()

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(0.01)
    assert threaded.clock_now_ps() == 0
    go.set()
    thread.join()
    assert threaded.clock_now_ps() == PS


def test_a_thread_holds_the_horizon_from_its_start_on(threaded: FakeExtension) -> None:
    threaded.clock_advance_ps(5 * PS)
    go = threading.Event()
    thread = threading.Thread(target=go.wait)
    thread.start()
    assert threaded.log[-1] == ("clock_reserve", 5 * PS)
    go.set()
    thread.join()


def released(threaded: FakeExtension) -> list[int]:
    return [entry[1] for entry in threaded.log if entry[0] == "clock_release"]


def test_a_thread_that_sleeps_holds_nothing(threaded: FakeExtension) -> None:
    threaded.clock_advance_ps(PS)
    go = threading.Event()
    sleeping = [threading.Thread(target=go.wait) for _ in range(3)]
    for thread in sleeping:
        thread.start()
    deadline_s = time.monotonic() + 20
    while len(released(threaded)) < 3 and time.monotonic() < deadline_s:
        time.sleep(0.01)
    assert sorted(released(threaded)) == sorted(thread.ident or 0 for thread in sleeping)
    threaded.clock_advance_ps(PS)
    go.set()
    for thread in sleeping:
        thread.join()
    assert threaded.clock_now_ps() == 2 * PS


def test_a_thread_that_runs_keeps_its_clock_until_its_end(threaded: FakeExtension) -> None:
    threaded.clock_advance_ps(PS)
    stop = threading.Event()

    def compute() -> None:
        while not stop.is_set():
            sum(range(1000))

    thread = threading.Thread(target=compute)
    thread.start()
    time.sleep(0.3)
    assert released(threaded) == []
    stop.set()
    thread_id, deadline = thread.ident, time.monotonic() + 20
    while not released(threaded) and time.monotonic() < deadline:  # the watcher looks every few milliseconds
        time.sleep(0.01)
    assert released(threaded) == [thread_id]
