"""Python's clocks by calling frame."""

from __future__ import annotations

import asyncio
import os
import queue
import subprocess
import sys
import threading
import time
import timeit
import types
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interpose.time import clocks
from interpose_python.fake_extension import READ_PS, FakeExtension

PS = 10**12


def call_from(module: str, code: str) -> Any:
    """The value of an expression evaluated in a module of that name."""
    scope: dict[str, Any] = {"__name__": module, "time": time}
    return eval(code, scope)


def test_scripts_and_frameworks_see_the_ranks_clock(rank: FakeExtension) -> None:
    clocks.install(rank, epoch_s=1_700_000_000)
    for module in ("__main__", "megatron.training", "torch.optim.optimizer", "lightning.pytorch"):
        before = call_from(module, "time.time()")
        rank.clock_advance_ps(3 * PS)
        assert call_from(module, "time.time()") - before == pytest.approx(3, abs=1e-5)


def test_the_epoch_is_the_jobs(rank: FakeExtension) -> None:
    clocks.install(rank, epoch_s=1_700_000_000)
    assert call_from("__main__", "time.time()") == 1_700_000_000 + READ_PS / PS
    assert call_from("__main__", "time.time_ns()") == 1_700_000_000 * 10**9 + 2 * READ_PS // 1000


def test_monotonic_clocks_start_at_a_whole_second(rank: FakeExtension) -> None:
    clocks.install(rank)
    rank.clock_advance_ps(PS // 4)
    for name in ("perf_counter", "monotonic", "process_time"):
        assert call_from("__main__", f"time.{name}()") % 1 == pytest.approx(0.25, abs=1e-5)


@pytest.mark.parametrize(
    "module",
    ["queue", "asyncio.base_events", "torch.distributed.elastic.agent.server.api", "grpc._channel",
     "torch.utils.data.dataloader", "filelock._api", "urllib3.connection", "torch.distributed.rendezvous"],
)  # fmt: skip
def test_what_waits_for_real_things_sees_real_time(rank: FakeExtension, module: str) -> None:
    clocks.install(rank)
    before = call_from(module, "time.monotonic()")
    rank.clock_advance_ps(1000 * PS)
    assert 0 <= call_from(module, "time.monotonic()") - before < 100


def test_names_that_only_begin_alike_are_virtual() -> None:
    assert not clocks.sees_real_time("queueing_model")
    assert not clocks.sees_real_time("grpcish.x")
    assert clocks.sees_real_time("grpc")


def test_sleep_moves_the_clock_and_hardly_sleeps(rank: FakeExtension) -> None:
    clocks.install(rank)
    real = clocks._real["perf_counter"]
    started = real()
    call_from("__main__", "time.sleep(3600)")
    assert real() - started < 1
    assert rank.clock_now_ps() == 3600 * PS
    with pytest.raises(ValueError, match="non-negative"):
        call_from("__main__", "time.sleep(-1)")


def test_the_standard_library_really_sleeps(rank: FakeExtension) -> None:
    clocks.install(rank)
    started = clocks._real["perf_counter"]()
    call_from("threading", "time.sleep(0.02)")
    assert clocks._real["perf_counter"]() - started >= 0.02
    assert rank.clock_now_ps() == 0


def test_polling_loops_end_on_time(rank: FakeExtension) -> None:
    clocks.install(rank)
    scope: dict[str, Any] = {"__name__": "__main__", "time": time}
    exec("start = time.time()\nreads = 0\nwhile time.time() - start < 30: reads += 1", scope)
    assert scope["reads"] < 100_000
    assert rank.clock_now_ps() == pytest.approx(30 * PS, abs=2 * clocks.SPIN_LIMIT_PS)


def test_work_between_reads_keeps_them_cheap(rank: FakeExtension) -> None:
    clocks.install(rank)
    for _ in range(1000):
        rank.clock_advance_ps(5_000_000)
        call_from("__main__", "time.perf_counter()")
    assert rank.clock_now_ps() == 1000 * (5_000_000 + READ_PS)


@given(uptime=st.integers(1, 2**26), now_ps=st.integers(0, 10**15), later_ps=st.integers(0, 10**15))
def test_differences_do_not_depend_on_the_machines_uptime(uptime: int, now_ps: int, later_ps: int) -> None:
    def reading(base: int, ps: int) -> float:
        return base + (ps / PS // clocks.FLOAT_GRID) * clocks.FLOAT_GRID

    assert reading(uptime, later_ps) - reading(uptime, now_ps) == reading(7, later_ps) - reading(7, now_ps)


def test_threads_without_a_clock_see_real_time(rank: FakeExtension) -> None:
    clocks.install(rank)
    rank.clock_advance_ps(10**6 * PS)
    seen: list[float] = []
    thread = threading.Thread(target=lambda: seen.append(call_from("__main__", "time.time()")))
    thread.start()
    thread.join()
    assert abs(seen[0] - clocks._real["time"]()) < 100


def test_before_the_session_the_clock_stands_and_goes_on_from_there(
    extension: FakeExtension, monkeypatch: pytest.MonkeyPatch
) -> None:
    from interpose.time import session

    clocks.install(extension, epoch_s=1000)
    first = call_from("__main__", "time.time()")
    call_from("__main__", "time.sleep(2)")
    second = call_from("__main__", "time.time()")
    assert second - first == pytest.approx(2, abs=1e-5)
    monkeypatch.setattr(session, "_session", object())
    extension.session_open(0)
    third = call_from("__main__", "time.time()")
    assert second <= third < second + 1e-3


def test_timeit_measures_virtual_time(rank: FakeExtension) -> None:
    clocks.install(rank)
    took = timeit.Timer(
        lambda: rank.clock_advance_ps(PS), timer=lambda: call_from("timeit", "time.perf_counter()")
    )
    assert took.timeit(3) == pytest.approx(3, abs=1e-3)


def test_copies_taken_before_are_replaced_except_where_real_time_is_due(
    rank: FakeExtension, monkeypatch: pytest.MonkeyPatch
) -> None:
    early = types.ModuleType("some_framework.timers")
    exec("from time import time, perf_counter as now\ndef both(): return time(), now()", early.__dict__)
    waiting = types.ModuleType("grpc._early")
    exec("from time import time", waiting.__dict__)
    monkeypatch.setitem(sys.modules, early.__name__, early)
    monkeypatch.setitem(sys.modules, waiting.__name__, waiting)
    clocks.install(rank, epoch_s=5)
    assert early.both()[0] == pytest.approx(5, abs=1e-3)
    assert waiting.time is clocks._real["time"]
    assert timeit.default_timer is time.perf_counter


def test_asyncio_and_queues_work_while_the_clock_stands(rank: FakeExtension) -> None:
    clocks.install(rank)

    async def wait() -> str:
        await asyncio.sleep(0.01)
        return "done"

    assert asyncio.run(asyncio.wait_for(wait(), 5)) == "done"
    with pytest.raises(queue.Empty):
        queue.Queue[int]().get(timeout=0.01)
    assert not threading.Event().wait(0.01)
    done = subprocess.run([sys.executable, "-c", "pass"], timeout=30)
    assert done.returncode == 0
    assert rank.clock_now_ps() == 0


def test_a_forked_child_sees_real_time(rank: FakeExtension) -> None:
    clocks.install(rank)
    rank.clock_advance_ps(10**6 * PS)
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.write(write, str(call_from("__main__", "time.time()")).encode())
        os._exit(0)
    os.waitpid(pid, 0)
    assert abs(float(os.read(read, 100)) - clocks._real["time"]()) < 100
    os.close(read)
    os.close(write)


def test_uninstalled_clocks_are_pythons_own() -> None:
    assert "built-in" in repr(time.time)
    assert "built-in" in repr(time.sleep)
