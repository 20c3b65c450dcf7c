"""Work items of a thread pool start at their submit's time and hand it back with their result."""

from __future__ import annotations

import concurrent.futures
import concurrent.futures.thread
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from interpose.time import futures, threads
from interpose_python.fake_extension import FakeExtension

PS = 10**12


@pytest.fixture
def pooled(rank: FakeExtension, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeExtension]:
    """Wraps ThreadPoolExecutor's work items for one test."""
    item = concurrent.futures.thread._WorkItem  # type: ignore[attr-defined]
    saved = [(item, "__init__"), (item, "run"), (Future, "cancel"), (Future, "result"), (Future, "exception")]
    originals = [getattr(owner, name) for owner, name in saved]
    monkeypatch.setattr(futures, "_extension", None)
    futures.install(rank)
    yield rank
    for (owner, name), original in zip(saved, originals, strict=True):
        setattr(owner, name, original)


def test_an_item_starts_at_its_submit_and_the_result_comes_at_its_end(pooled: FakeExtension) -> None:
    def work() -> int:
        started = pooled.clock_now_ps()
        pooled.clock_advance_ps(2 * PS)
        return started

    pooled.clock_advance_ps(5 * PS)
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(work)
        assert first.result() == 5 * PS
        assert pooled.clock_now_ps() == 7 * PS
        pooled.clock_advance_ps(PS)
        second = pool.submit(work)  # the same thread, with a clock of its own again
        assert second.result() == 8 * PS
        assert pooled.clock_now_ps() == 10 * PS


def test_a_result_that_was_there_earlier_does_not_go_back(pooled: FakeExtension) -> None:
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(pooled.clock_now_ps)
        pooled.clock_advance_ps(9 * PS)
        future.result()
    assert pooled.clock_now_ps() == 9 * PS


def test_an_exception_comes_at_its_end_too(pooled: FakeExtension) -> None:
    def work() -> None:
        pooled.clock_advance_ps(3 * PS)
        raise ValueError("bad")

    with ThreadPoolExecutor(1) as pool:
        assert isinstance(pool.submit(work).exception(), ValueError)
    assert pooled.clock_now_ps() == 3 * PS


def test_a_cancelled_item_gives_its_clock_up(pooled: FakeExtension) -> None:
    go = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        pool.submit(go.wait)
        waiting = pool.submit(pooled.clock_now_ps)
        assert waiting.cancel()
        go.set()
    assert [call[0] for call in pooled.log].count("clock_drop") == 1


def test_an_item_that_is_awaited_keeps_its_clock_though_it_sleeps(
    pooled: FakeExtension, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A work item that waits for a process (which writes a checkpoint): the pool's thread is seen
    asleep."""
    saved = [(threading.Thread, name) for name in ("start", "join", "_bootstrap_inner")]
    originals = [getattr(owner, name) for owner, name in saved]
    monkeypatch.setattr(threads, "_extension", None)
    threads.install(pooled)
    try:
        go = threading.Event()
        with ThreadPoolExecutor(1) as pool:
            future = pool.submit(go.wait)
            (worker,) = pool._threads
            deadline_s = time.monotonic() + 10
            while "clock_release" not in [call[0] for call in pooled.log] and time.monotonic() < deadline_s:
                time.sleep(0.01)  # nobody waits for it yet: taken back
            threading.Timer(0.3, go.set).start()
            pooled.clock_advance_ps(5 * PS)
            pooled.log.clear()
            future.result()
    finally:
        for (owner, name), original in zip(saved, originals, strict=True):
            setattr(owner, name, original)
    assert ("clock_reserve", 5 * PS) in pooled.log
    assert ("clock_release", worker.ident) not in pooled.log
