"""One measured row beside the predicted time, and errors by table, GPU and class."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class CheckedRow:
    """A row of a table of measurements: where it stands, what it is, seconds measured and predicted."""

    table: str
    gpu: str
    klass: str
    what: str
    measured_s: float
    predicted_s: float

    @property
    def error(self) -> float:
        """Signed relative error of the prediction."""
        return self.predicted_s / self.measured_s - 1.0


@dataclass(frozen=True)
class SkippedRow:
    """A row that is not priced, and why."""

    table: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class ErrorSummary:
    """Errors of one class on one GPU, in percent: absolute ones, and the signed median (bias)."""

    table: str
    gpu: str
    klass: str
    rows: int
    median: float
    p90: float
    worst: float
    bias: float

    def as_json(self) -> dict[str, str | int | float]:
        """The summary as the JSON list has it."""
        return {
            "table": self.table, "gpu": self.gpu, "class": self.klass, "rows": self.rows,
            "median": round(self.median, 2), "p90": round(self.p90, 2), "worst": round(self.worst, 2),
            "bias": round(self.bias, 2),
        }  # fmt: skip


def summarize(rows: Iterable[CheckedRow]) -> list[ErrorSummary]:
    """Errors by (table, GPU, class), sorted by name.  The 90th percentile is the nearest rank above."""
    groups: dict[tuple[str, str, str], list[float]] = defaultdict(list)
    for row in rows:
        groups[row.table, row.gpu, row.klass].append(100.0 * row.error)
    result = []
    for (table, gpu, klass), signed in sorted(groups.items()):
        errors = sorted(abs(error) for error in signed)
        result.append(ErrorSummary(
            table=table, gpu=gpu, klass=klass, rows=len(errors), median=statistics.median(errors),
            p90=errors[min(len(errors) - 1, int(0.9 * len(errors)))], worst=errors[-1],
            bias=statistics.median(signed),
        ))  # fmt: skip
    return result
