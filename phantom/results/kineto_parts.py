"""A real step, taken apart for an error budget from a torch.profiler trace (Kineto, Chrome JSON)."""

from __future__ import annotations

import gzip
import io
import re
import zlib
from collections.abc import Collection
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

from netsim.outside import OutsideError, decode_text, parse_json, read_bytes
from phantom.kernels.predict.operator_classes import operators
from phantom.results.budget import Interval, StepParts, parts_of
from phantom.results.budget_names import collective_kind, operator_name
from phantom.results.compare import MeasurementError

_STEP_MARK = re.compile(r"ProfilerStep#\d+$")
_OPTIMIZER_MARK = "Optimizer.step#"
_MAX_BYTES = 2 << 30
_DEVICE_CATEGORIES = ("kernel", "gpu_memcpy", "gpu_memset")
# Operators that did nothing where they called nothing.
_EMPTY_LEAVES = frozenset({"to", "contiguous", "reshape", "item", "_local_scalar_dense"})


@dataclass
class _Event:
    name: str
    category: str
    thread: tuple[str, str]
    begin_ps: int
    end_ps: int
    external_id: str | None
    children: list[_Event] = field(default_factory=list)


def kineto_parts(path: Path, *, known: Collection[str]) -> StepParts:
    """Returns the parts of the steps that the trace holds.

    `known`: canonical names of the simulated kernels. On the CPU an operator of such a name is a kernel with
    all that it calls; another is taken apart into what it calls. Steps are ProfilerStep marks, else the spans
    between ends of optimizer steps. Raises MeasurementError for a file that is not a trace or holds no step.
    """
    events = _read(path)
    bounds = _steps(events, path)
    begin_ps, end_ps = bounds[0], bounds[-1]
    device = [event for event in events if event.category in _DEVICE_CATEGORIES]
    collectives = [
        (kind, _inside(event, begin_ps, end_ps)) for event in events if (kind := _collective(event))
    ]
    if device:
        kernels = _device_kernels(device, events, begin_ps, end_ps)
    else:
        kernels = _host_kernels(events, known, begin_ps, end_ps)
    return parts_of(
        steps=len(bounds) - 1,
        total_ps=Fraction(end_ps - begin_ps),
        kernels=[kernel for kernel in kernels if kernel[2][1] > kernel[2][0]],
        collectives=[(kind, interval) for kind, interval in collectives if interval[1] > interval[0]],
    )


def _read(path: Path) -> list[_Event]:
    try:
        content = parse_json(_text(path), str(path), not_a_number=True)
        rows = content["traceEvents"] if isinstance(content, dict) else content
        events = [
            _Event(
                name=str(row["name"]),
                category=str(row.get("cat", "")),
                thread=(str(row.get("pid")), str(row.get("tid"))),
                begin_ps=_ps(row["ts"]),
                end_ps=_ps(row["ts"]) + _ps(row.get("dur", 0)),
                external_id=_external_id(row.get("args")),
            )
            for row in rows
            if row.get("ph") == "X"
        ]
    except OutsideError as error:
        raise MeasurementError(str(error)) from None
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise MeasurementError(f"{path} is not a torch.profiler trace: {error!r:.200}") from None
    return sorted(events, key=lambda event: (event.begin_ps, -event.end_ps))


def _text(path: Path) -> str:
    content = read_bytes(path, limit_bytes=_MAX_BYTES)
    if path.suffix == ".gz":
        try:
            with gzip.open(io.BytesIO(content)) as file:
                content = file.read(_MAX_BYTES + 1)
        except (OSError, EOFError, zlib.error) as error:
            raise OutsideError(f"{path} is not a gzip file: {error}") from None
        if len(content) > _MAX_BYTES:
            raise OutsideError(f"{path} holds more than the {_MAX_BYTES >> 30} GiB that are read of a trace")
    return decode_text(content, str(path))


def _external_id(arguments: Any) -> str | None:
    """What ties a kernel to the operator that launched it."""
    found = arguments.get("External id") if isinstance(arguments, dict) else None
    return None if found is None else str(found)


def _ps(microseconds: float) -> int:
    return round(microseconds * 1e6)


def _steps(events: list[_Event], path: Path) -> list[int]:
    """Bounds of the steps in ps, one more than there are steps."""
    marks = [
        event for event in events if _STEP_MARK.match(event.name) and event.category == "user_annotation"
    ]
    if marks:
        return [marks[0].begin_ps, *(mark.end_ps for mark in marks)]
    # A step is a maximal run of optimizer steps without a backward pass between them (docs/running.md).
    optimizers = [event for event in events if event.name.startswith(_OPTIMIZER_MARK)]
    backward = sorted(event.begin_ps for event in events if event.name.startswith("autograd::engine::"))
    ends: list[int] = []
    for event in optimizers:
        if ends and not any(ends[-1] <= begin < event.end_ps for begin in backward):
            ends[-1] = event.end_ps
        else:
            ends.append(event.end_ps)
    first = min(
        (event.begin_ps for event in events if event.category in ("cpu_op", "user_annotation")), default=0
    )
    if not ends:
        raise MeasurementError(
            f"{path}: no step in this trace: neither ProfilerStep marks nor optimizer steps "
            f"(phantom record --trace makes one that has them)"
        )
    return [first, *ends]


def _is_mark(event: _Event) -> bool:
    return event.name.startswith(_OPTIMIZER_MARK) or _STEP_MARK.match(event.name) is not None


def _inside(event: _Event, begin_ps: int, end_ps: int) -> Interval:
    return max(event.begin_ps, begin_ps), min(event.end_ps, end_ps)


def _collective(event: _Event) -> str | None:
    if event.category == "user_annotation" and event.name.startswith("gloo:"):
        return collective_kind(event.name)
    if event.category == "kernel" and event.name.startswith("nccl"):
        return collective_kind(event.name)
    return None


def _device_kernels(
    device: list[_Event], events: list[_Event], begin_ps: int, end_ps: int
) -> list[tuple[str, str, Interval]]:
    """GPU kernels by the innermost operator that launched them ("External id" ties the two)."""
    launcher: dict[str, str] = {}
    for event in events:
        if event.category == "cpu_op" and event.external_id is not None:
            launcher.setdefault(event.external_id, event.name)
    found = []
    for event in device:
        if _collective(event):
            continue
        name = operator_name(launcher.get(event.external_id or "", event.name))
        found.append((name, operators().get(name, "other"), _inside(event, begin_ps, end_ps)))
    return found


def _host_kernels(
    events: list[_Event], known: Collection[str], begin_ps: int, end_ps: int
) -> list[tuple[str, str, Interval]]:
    """Operators that the CPU itself ran."""
    found: list[tuple[str, str, Interval]] = []
    # What Gloo's own threads do is part of the collective; the step's thread only begins collectives.
    steps_on = {event.thread for event in events if _is_mark(event)}
    gloo_threads = {event.thread for event in events if event.name.startswith("gloo:")} - steps_on
    pending = _forest(
        [event for event in events if event.category == "cpu_op" and event.thread not in gloo_threads]
    )
    while pending:
        event = pending.pop()
        name = operator_name(event.name)
        klass = operators().get(name, "other")
        works = "::" in event.name and klass != "none" and not event.name.startswith("autograd::")
        leaf = not event.children and event.name.startswith("aten::") and name not in _EMPTY_LEAVES
        if works and (name in known or leaf):
            found.append((name, klass, _inside(event, begin_ps, end_ps)))
        else:
            pending += event.children
    return found


def _forest(events: list[_Event]) -> list[_Event]:
    """Nests events by time within each thread; `events` is ordered by begin, the longer first."""
    roots: list[_Event] = []
    open_events: dict[tuple[str, str], list[_Event]] = {}
    for event in events:
        stack = open_events.setdefault(event.thread, [])
        while stack and stack[-1].end_ps <= event.begin_ps:
            stack.pop()
        (stack[-1].children if stack else roots).append(event)
        stack.append(event)
    return roots
