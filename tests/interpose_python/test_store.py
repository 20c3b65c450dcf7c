"""Store calls leave the records that carry causality."""

from __future__ import annotations

from datetime import timedelta

import pytest
import torch.distributed as dist

from interpose.time import session, store
from interpose_python.fake_extension import FakeExtension

extension_of_all = FakeExtension()


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> FakeExtension:
    """Wraps the classes (once for the whole process) and opens the session for one test."""
    store.install(extension_of_all)
    extension_of_all.open = False
    extension_of_all.log.clear()
    extension_of_all.clock_now_ps()
    monkeypatch.setattr(session, "_session", object())
    return extension_of_all


def names(extension: FakeExtension) -> list[tuple[str, ...]]:
    return [entry[:2] for entry in extension.log]


def test_set_posts_before_and_get_waits_around_the_call(recorded: FakeExtension) -> None:
    one = dist.HashStore()
    one.set("key", "value")
    assert one.get("key") == b"value"
    kinds = [entry[0] for entry in recorded.log]
    assert kinds == ["post", "wait_begin", "wait_end"]
    assert names(recorded)[:2] == [("post", "/key"), ("wait_begin", ("/key",))]


def test_prefixes_name_the_key_as_the_inner_store_sees_it(recorded: FakeExtension) -> None:
    inner = dist.HashStore()
    outer = dist.PrefixStore("a", dist.PrefixStore("b", inner))
    outer.set("key", "1")
    assert recorded.log[-1] == ("post", "/b/a/key")
    assert inner.get("b/a/key") == b"1"
    assert ("wait_begin", ("/b/a/key",)) in names(recorded)


def test_add_tells_amount_and_result(recorded: FakeExtension) -> None:
    one = dist.HashStore()
    assert one.add("counter", 2) == 2
    assert one.add("counter", 3) == 5
    assert recorded.log == [("add", "/counter", 2, 2), ("add", "/counter", 3, 5)]


def test_delete_forgets_only_what_was_there(recorded: FakeExtension) -> None:
    one = dist.HashStore()
    one.set("key", "1")
    assert one.delete_key("key")
    assert not one.delete_key("key")
    assert names(recorded) == [("post", "/key"), ("forget", "/key")]


def test_compare_set_posts_where_it_succeeds(recorded: FakeExtension) -> None:
    one = dist.HashStore()
    one.compare_set("key", "", "first")
    assert names(recorded) == [("post", "/key")]
    one.compare_set("key", "wrong", "second")
    assert len(recorded.log) == 1


def test_a_wait_that_fails_raises_what_torch_raises(recorded: FakeExtension) -> None:
    one = dist.HashStore()
    with pytest.raises(dist.DistStoreError):
        one.wait(["never"], timedelta(milliseconds=20))


def test_check_is_causal_only_where_the_keys_are_there(recorded: FakeExtension) -> None:
    one = dist.HashStore()
    assert not one.check(["key"])
    assert recorded.log == []
    one.set("key", "1")
    assert one.check(["key"])
    assert names(recorded)[:2] == [("post", "/key"), ("wait_begin", ("/key",))]


def test_without_a_session_nothing_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    store.install(extension_of_all)
    monkeypatch.setattr(session, "_session", None)
    extension_of_all.log.clear()
    one = dist.HashStore()
    one.set("key", "1")
    one.get("key")
    assert extension_of_all.log == []
