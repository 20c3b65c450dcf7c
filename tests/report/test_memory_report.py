"""The report of an out-of-memory error: who, when, what was asked, what holds memory, what would fit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from msgspec import structs

from phantom.report.memory import categories
from phantom.report.memory_report import Shortage, memory_report, oom_report, remedies, shortages
from phantom.results.run_summary import plain, summary_from
from phantom.timeline.recording import load
from report.synthetic import write_run

GIB = 1 << 30


def shortage(**changes: Any) -> Shortage:
    held = {"parameters": 10, "gradients": 10, "optimizer state": 20, "activations": 39}
    given = {
        "rank": 3,
        "time_s": 1.25,
        "requested_bytes": 2 * GIB,
        "allocated_bytes": 79 * GIB,
        "reserved_bytes": 79 * GIB,
        "capacity_bytes": 79 * GIB,
        "holders": {name: value * GIB for name, value in held.items()},
    }
    return Shortage(**{**given, **changes})


def test_remedies_say_how_much_they_give() -> None:
    found = remedies(shortage(), world_size=8)
    assert "activations (39.00 GiB) would have to shrink by 5.1%" in found[0]
    assert "the optimizer state (ZeRO-1) over 8 ranks saves 17.50 GiB" in found[1]
    assert "a GPU with" in found[2]


def test_fragmentation_is_told_from_lack_of_memory() -> None:
    first, second = remedies(shortage(allocated_bytes=70 * GIB), world_size=8)
    assert "9.00 GiB is reserved but unallocated" in first
    assert "expandable_segments:True" in first
    assert "fewer activations (39.00 GiB)" in second
    (only,) = remedies(shortage(allocated_bytes=70 * GIB, holders={"other": 70 * GIB}), world_size=8)
    assert "expandable_segments:True" in only


def test_a_later_stage_is_named_when_the_first_is_not_enough() -> None:
    large = shortage(requested_bytes=25 * GIB, capacity_bytes=79 * GIB)
    assert any("gradients too (ZeRO-2)" in text for text in remedies(large, world_size=8))
    alone = remedies(shortage(requested_bytes=900 * GIB), world_size=1)
    assert "no single remedy" in alone[0]


def test_report_names_the_first_rank_and_adds_up(tmp_path: Path) -> None:
    write_run(tmp_path, ranks=2, steps=1)
    recording = load(tmp_path)
    fault = {"kind": "oom", "requested_bytes": 2 * GIB, "allocated_bytes": 4 * GIB, "reserved_bytes": 4 * GIB}
    fault |= {"capacity_bytes": 5 * GIB, "holders": {"parameters": GIB, "activations": 3 * GIB}}
    faults = [{**fault, "rank": 1, "now_ps": 2 * 10**12}, {**fault, "rank": 0, "now_ps": 10**12}]
    summary = summary_from({**plain(recording.summary), "faults": faults})
    text = oom_report(summary)
    assert "rank 0 ran out of memory at 1 s of virtual time (1 more rank after it)" in text
    assert "asked for 2.00 GiB" in text
    assert "1.00 GiB too much" in text
    assert sum(shortages(summary)[0].holders.values()) == 4 * GIB
    assert oom_report(recording.summary) == ""
    assert "no step was complete" not in text
    assert "no step was complete" in oom_report(structs.replace(summary, steps=()))
    whole = memory_report(recording)
    assert whole.startswith("rank 0: peak 69.00 MiB allocated")
    assert "largest blocks: 64.00 MiB parameters" in whole


def test_the_peak_of_an_oom_before_the_first_step_is_of_activations(tmp_path: Path) -> None:
    """As the fault itself says: parameters are named when memory runs out, no optimizer has named any."""
    write_run(tmp_path, ranks=1, steps=1)
    spool = load(tmp_path).ranks[0]
    births = spool.memory["bytes"] > 0
    kept = spool.memory[births]  # nothing was freed any more
    tags = tuple(replace(tag, at=len(kept)) for tag in spool.tags)
    found = categories(replace(spool, memory=kept, tags=tags, steps=()))
    assert found[0] == "parameters"
    assert set(found[1:]) == {"activations"}
