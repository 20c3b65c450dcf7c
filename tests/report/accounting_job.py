"""Drives the virtual device's streams with generated jobs and checks the recorder's accounting.

Run in a process of its own, since loading the extension changes torch. Plays the simulator: it decides when
collectives end, and tells the rank only after the whole step has been launched.
"""

from __future__ import annotations

import itertools
import sys
from pathlib import Path
from typing import Any

import msgspec
import torch  # noqa: F401 - the extension needs its libraries
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from interpose.extension import load
from phantom.wire import schema as wire
from phantom.wire.fields import Account
from phantom.wire.records import decode, pack
from report.synthetic import _union

LATENCY_PS = 2_000_000
extension: Any = load()
extension.install({"device_count": 1, "host": {"launch_latency_ps": LATENCY_PS}, "launch_queue": 1 << 20})

OPERATION = st.one_of(
    st.tuples(st.just("kernel"), st.integers(0, 2), st.integers(0, 50_000_000)),
    st.tuples(st.just("collective"), st.integers(0, 2), st.integers(0, 50_000_000)),
    st.tuples(st.just("wait"), st.integers(0, 2), st.integers(0, 2)),
    st.tuples(st.just("host"), st.just(0), st.integers(0, 20_000_000)),
)


class Job:
    """The model: streams as plain numbers. Times in ps."""

    def __init__(self) -> None:
        self.clock = 0
        self.tails = [0, 0, 0]
        self.spans: list[tuple[int, int, bool]] = []
        self.ends: dict[int, int] = {}
        self.step_end = -1
        self.index = itertools.count()
        self.settled: dict[int, list[int]] = {}

    def play(self, operation: tuple[str, int, int]) -> None:
        what, stream, amount = operation
        if what == "host":
            self.clock += amount
            extension.clock_advance_ps(amount)
        elif what == "wait":
            self.tails[stream] = max(self.tails[stream], self.tails[amount])
            extension.stream_wait_stream(0, stream, amount)
        else:
            start = max(self.tails[stream], self.clock + LATENCY_PS)
            self.tails[stream] = start + amount
            self.spans.append((start, start + amount, what == "kernel"))
            if what == "kernel":
                extension.launch_kernel(0, stream, amount, "k", "gemm", "predicted")
            else:
                self.ends[extension.occupy_stream(0, stream, "all_reduce")] = start + amount

    def resolve(self) -> None:
        """Ends all nodes, joins included, as the simulator would."""
        while (batch := extension.next_batch(0.0)) is not None and batch[0]:
            decoded = decode(batch[0])
            assert decoded.error is None, decoded.error
            for record in decoded.records:
                if isinstance(record, wire.Node):
                    ends = (self.ends[dep.node] + dep.offset_ps for dep in record.dependencies)
                    self.ends[record.node] = max(record.bound_ps, *ends)
                elif isinstance(record, wire.Stats):
                    self.take(record.account)
        resolved = [number for entry in self.ends.items() for number in entry]
        extension.on_message(pack(wire.Resolved(resolved)))

    def take(self, account: Account) -> None:
        for step in account.steps:
            self.settled[step.index] = [step.end_ps, step.compute_ps, step.exposed_ps, step.idle_ps]


job = Job()
extension.session_open(0)
extension.spool_open(sys.argv[1], 0, 0, 1 << 40)


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck), database=None)
@given(st.lists(OPERATION, min_size=1, max_size=25))
def steps_add_up(operations: list[tuple[str, int, int]]) -> None:
    for operation in operations:
        job.play(operation)
    index = next(job.index)
    extension.step_end(index)
    end = max(job.tails)
    job.resolve()
    ahead = max(end - job.clock, 0)
    job.clock += ahead
    extension.clock_advance_ps(ahead)
    extension.step_end(
        next(job.index)
    )  # an empty step: the one before is settled only when a newer one is marked
    job.resolve()
    job.take(msgspec.msgpack.decode(extension.packed_stats(), type=Account))
    got_end, compute, exposed, idle = job.settled[index]
    begin = job.step_end
    if begin < 0:
        begin = job.spans[0][0] if job.spans else 0
    assert got_end == end, (got_end, end)
    clipped = [(max(s, begin), min(e, end), k) for s, e, k in job.spans if e > begin and s < end]
    expected = _union([(s, e) for s, e, k in clipped if k])
    busy = _union([(s, e) for s, e, _ in clipped])
    assert (compute, exposed) == (expected, busy - expected)
    assert compute + exposed + idle == max(end - begin, 0)
    job.step_end = end


steps_add_up()
extension.spool_close()
spool = Path(sys.argv[1])
print(f"{len(job.settled)} steps, {spool.stat().st_size} bytes")
