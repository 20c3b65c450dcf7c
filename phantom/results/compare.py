"""Simulated against measured step times: pairs them by step, and how far the medians are apart."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from netsim.outside import OutsideError, read_json
from phantom.results.run_summary import StepTime


class MeasurementError(ValueError):
    """A file of measured step times cannot be used; the text names file, place and what is allowed."""


@dataclass(frozen=True, kw_only=True)
class StepPair:
    """One step, both times in seconds."""

    index: int
    virtual_s: float
    real_s: float

    @property
    def error(self) -> float:
        """(virtual - real) / real: positive where the simulation is slower than reality."""
        return self.virtual_s / self.real_s - 1


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Steps that both sides have. The first `skipped` of them are shown but do not count."""

    pairs: tuple[StepPair, ...]
    skipped: int
    virtual_only: int
    real_only: int

    @property
    def counted(self) -> tuple[StepPair, ...]:
        """The pairs that count."""
        return self.pairs[self.skipped :]

    @property
    def virtual_median_s(self) -> float:
        """Median of the simulated times that count."""
        return median(pair.virtual_s for pair in self.counted)

    @property
    def real_median_s(self) -> float:
        """Median of the measured times that count."""
        return median(pair.real_s for pair in self.counted)

    @property
    def error(self) -> float:
        """Relative error of the median step time: (virtual - real) / real."""
        return self.virtual_median_s / self.real_median_s - 1


def read_measured(path: Path) -> dict[int, float]:
    """Reads measured step times in seconds, by step index.

    The file is JSON: a list, or a map with the list under "steps". An entry is a number, the time of the step
    at that place of the list, or {"index": i, "real_s": t}. Raises MeasurementError.
    """
    try:
        content = read_json(path, not_a_number=True)  # the check below names the place
    except OutsideError as error:
        raise MeasurementError(str(error)) from None
    entries = content.get("steps") if isinstance(content, dict) else content
    if not isinstance(entries, list):
        raise MeasurementError(
            f'{path}: expected a list of step times in seconds, or {{"steps": [...]}} with such a list'
        )
    times: dict[int, float] = {}
    for place, entry in enumerate(entries):
        index: Any = place
        time_s: Any = entry
        if isinstance(entry, dict):
            index, time_s = entry.get("index"), entry.get("real_s")
        if not _is_number(time_s) or not math.isfinite(time_s) or time_s <= 0:
            raise MeasurementError(
                f"{path}: steps[{place}] is {entry!r}; expected seconds above 0, or "
                f'{{"index": 3, "real_s": 0.412}}'
            )
        if not isinstance(index, int) or isinstance(index, bool) or index < 0:
            raise MeasurementError(f"{path}: steps[{place}] has index {index!r}; expected 0, 1, ...")
        if index in times:
            raise MeasurementError(f"{path}: step {index} is there twice")
        times[index] = float(time_s)
    return times


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def compare_steps(
    steps: Sequence[StepTime], measured: Mapping[int, float], *, skip: int | None = None
) -> Comparison:
    """Pairs the `steps` of a summary.json with measured times.

    `skip`: how many leading steps do not count; by default the first one where there are more, as in
    `step_virtual_s`. Raises MeasurementError where no step is left.
    """
    virtual = {step.index: step.virtual_s for step in steps}
    pairs = tuple(
        StepPair(index=index, virtual_s=virtual[index], real_s=measured[index])
        for index in sorted(virtual.keys() & measured.keys())
    )
    if skip is None:
        # What counts as the first step is step 0, not the first that was measured.
        skipped = sum(pair.index == 0 for pair in pairs) if len(pairs) > 1 else 0
    else:
        skipped = sum(pair.index < skip for pair in pairs)
    if skipped >= len(pairs):
        raise MeasurementError(
            f"no step to compare: the run has {_span(virtual)}, the measurement has {_span(measured)}"
            + (f", and the first {skip} do not count" if skip else "")
        )
    return Comparison(
        pairs=pairs,
        skipped=skipped,
        virtual_only=len(virtual) - len(pairs),
        real_only=len(measured) - len(pairs),
    )


def _span(times: Mapping[int, float]) -> str:
    if not times:
        return "no step"
    return f"{len(times)} step{'s' if len(times) > 1 else ''} from {min(times)} to {max(times)}"
