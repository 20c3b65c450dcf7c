"""datetime and the calendar functions of `time` give the rank's clock, by whatever name a module has them."""

from __future__ import annotations

import datetime
import logging
import pickle
import time
from datetime import datetime as copied_before
from typing import Any

import pytest

from interpose.time import clocks
from interpose_python.fake_extension import FakeExtension

PS = 10**12
EPOCH_S = 1_700_000_000
UTC = datetime.timezone.utc


def call_from(module: str, code: str) -> Any:
    """The value of an expression evaluated in a module of that name."""
    scope = {"__name__": module, "time": time, "datetime": datetime, "copied": copied_before, "UTC": UTC}
    return eval(code, scope)


@pytest.mark.parametrize(
    "now",
    [
        "copied.now()", "datetime.datetime.now()", "copied.now(UTC)", "copied.now(tz=UTC)", "copied.utcnow()",
        "copied.today()", "datetime.datetime.today()",
    ],
)  # fmt: skip
def test_differences_of_dates_are_virtual(rank: FakeExtension, now: str) -> None:
    clocks.install(rank, epoch_s=EPOCH_S)
    before = call_from("composer.trainer.trainer", now)
    rank.clock_advance_ps(7 * PS)
    passed_s = (call_from("composer.trainer.trainer", now) - before).total_seconds()
    assert passed_s == pytest.approx(7, abs=1e-4)


def test_dates_are_those_of_the_jobs_epoch(rank: FakeExtension) -> None:
    clocks.install(rank, epoch_s=EPOCH_S)
    at = datetime.datetime.fromtimestamp(EPOCH_S, UTC)
    assert abs(call_from("__main__", "copied.now(UTC)") - at) < datetime.timedelta(milliseconds=1)
    assert call_from("__main__", "copied.utcnow()").tzinfo is None
    assert call_from("__main__", "datetime.date.today()") == datetime.date.fromtimestamp(EPOCH_S)
    assert call_from("__main__", "time.localtime()") == time.localtime(EPOCH_S)
    assert call_from("__main__", "time.gmtime(None)") == time.gmtime(EPOCH_S)
    assert call_from("__main__", "time.gmtime(5)") == time.gmtime(5)
    assert call_from("__main__", "time.ctime()") == time.ctime(EPOCH_S)
    assert call_from("__main__", "time.asctime()") == time.asctime(time.localtime(EPOCH_S))
    assert call_from("__main__", "time.strftime('%s')") == str(EPOCH_S)
    assert call_from("__main__", "time.strftime('%Y', time.gmtime(0))") == "1970"


@pytest.mark.parametrize("clock", ["CLOCK_MONOTONIC", "CLOCK_REALTIME", "CLOCK_PROCESS_CPUTIME_ID"])
def test_clocks_by_their_number(rank: FakeExtension, clock: str) -> None:
    clocks.install(rank, epoch_s=EPOCH_S)
    before = call_from("__main__", f"(time.clock_gettime_ns(time.{clock}), time.clock_gettime(time.{clock}))")
    rank.clock_advance_ps(2 * PS)
    after = call_from("__main__", f"(time.clock_gettime_ns(time.{clock}), time.clock_gettime(time.{clock}))")
    assert (after[0] - before[0]) / 1e9 == pytest.approx(2, abs=1e-4)
    assert after[1] - before[1] == pytest.approx(2, abs=1e-4)


def test_a_subclass_gets_its_own_kind(rank: FakeExtension) -> None:
    class Moment(datetime.datetime):
        pass

    clocks.install(rank, epoch_s=EPOCH_S)
    assert type(eval("Moment.now()", {"__name__": "__main__", "Moment": Moment})) is Moment
    now = call_from("__main__", "copied.now()")
    assert type(now) is copied_before
    assert pickle.loads(pickle.dumps(now)) == now


def test_the_standard_library_and_processes_without_a_clock_see_real_dates(rank: FakeExtension) -> None:
    real_s = time.time()
    clocks.install(rank, epoch_s=EPOCH_S)
    assert call_from("logging", "copied.now()").timestamp() == pytest.approx(real_s, abs=60)
    assert call_from("logging", "time.localtime()").tm_year >= 2024
    assert logging.Formatter().formatTime(logging.makeLogRecord({"created": 0.0})).startswith("19")
    clocks.leave()
    assert call_from("__main__", "copied.now()").timestamp() > EPOCH_S + 10**6
