"""Work items of a thread pool start at their submit's time and hand it back with their result."""

from __future__ import annotations

import concurrent.futures
import concurrent.futures.thread
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from interpose import futures
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
