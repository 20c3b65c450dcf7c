"""Where the error of a simulated step comes from, in parts that add up to it exactly.

Both sides are taken apart in the same way: kernels, collectives, the time in which both run at once, and the
rest, which is the host's (launches, Python, waiting for the host). Errors of opposite sign then show as two
large parts and not as one small total.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction

Interval = tuple[int, int]


@dataclass(frozen=True, kw_only=True)
class Work:
    """All kernels of one operator: how many and how long together, in ps."""

    klass: str
    count: int
    total_ps: int


@dataclass(frozen=True, kw_only=True)
class StepParts:
    """`steps` steps of one rank, taken apart; all times in ps and summed over these steps.

    `kernels` by operator; `collectives_ps` the union of the collectives' intervals by kind; `overlap_ps` what
    is counted twice by the two. `total_ps` is the steps' time.
    """

    steps: int
    total_ps: Fraction
    kernels: Mapping[str, Work]
    collectives_ps: Mapping[str, int]
    overlap_ps: int

    @property
    def kernels_ps(self) -> int:
        """Sum over all kernels."""
        return sum(work.total_ps for work in self.kernels.values())

    @property
    def host_ps(self) -> Fraction:
        """What is neither kernel nor collective."""
        return self.total_ps - self.kernels_ps - sum(self.collectives_ps.values()) + self.overlap_ps

    def scaled(self, total_ps: Fraction) -> StepParts:
        """The same kernels and collectives in a step time that was measured otherwise (per step)."""
        return StepParts(
            steps=self.steps, total_ps=total_ps * self.steps, kernels=self.kernels,
            collectives_ps=self.collectives_ps, overlap_ps=self.overlap_ps,
        )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class OperatorError:
    """One operator's part: counts per step, mean times in ps, and the two errors in ps per step."""

    name: str
    klass: str
    virtual_count: Fraction
    real_count: Fraction
    virtual_mean_ps: Fraction
    real_mean_ps: Fraction
    inventory_ps: Fraction
    cost_ps: Fraction


@dataclass(frozen=True, kw_only=True)
class Budget:
    """Virtual less real, in ps per step.

    `inventory_ps` (operators that one side has more often) + the sum of `kernels_ps` (by class) + `host_ps` +
    the sum of `collectives_ps` (by kind) + `overlap_ps` = `error_ps`, exactly.
    """

    virtual_ps: Fraction
    real_ps: Fraction
    inventory_ps: Fraction
    kernels_ps: Mapping[str, Fraction]
    collectives_ps: Mapping[str, Fraction]
    host_ps: Fraction
    overlap_ps: Fraction
    operators: tuple[OperatorError, ...] = field(repr=False)

    @property
    def error_ps(self) -> Fraction:
        """Virtual less real."""
        return self.virtual_ps - self.real_ps

    def parts(self) -> list[tuple[str, Fraction]]:
        """All parts with their names; they sum to `error_ps`."""
        return [
            ("operator inventory", self.inventory_ps),
            *((f"kernel cost: {klass}", part) for klass, part in sorted(self.kernels_ps.items())),
            *((f"collectives: {kind}", part) for kind, part in sorted(self.collectives_ps.items())),
            ("launch and host time", self.host_ps),
            ("overlap", self.overlap_ps),
        ]


def _mean(work: Work | None) -> Fraction:
    return Fraction(work.total_ps, work.count) if work is not None and work.count else Fraction(0)


def _operator(name: str, virtual: Work | None, real: Work | None, steps: tuple[int, int]) -> OperatorError:
    """Splits count_v * mean_v - count_r * mean_r: what one side ran more, and what the common ones differ."""
    klass = (virtual or real).klass  # type: ignore[union-attr]  # one of the two is there
    count_v = Fraction(virtual.count if virtual else 0, steps[0])
    count_r = Fraction(real.count if real else 0, steps[1])
    mean_v, mean_r = _mean(virtual), _mean(real)
    surplus = count_v - count_r
    return OperatorError(
        name=name, klass=klass, virtual_count=count_v, real_count=count_r,
        virtual_mean_ps=mean_v, real_mean_ps=mean_r,
        inventory_ps=surplus * (mean_v if surplus > 0 else mean_r),
        cost_ps=min(count_v, count_r) * (mean_v - mean_r),
    )  # fmt: skip


def budget_of(virtual: StepParts, real: StepParts) -> Budget:
    """Returns the error budget of `virtual` against `real`, per step."""
    steps = (virtual.steps, real.steps)
    names = sorted(virtual.kernels.keys() | real.kernels.keys())
    operators = [_operator(name, virtual.kernels.get(name), real.kernels.get(name), steps) for name in names]
    by_class: dict[str, Fraction] = {}
    for operator in operators:
        by_class[operator.klass] = by_class.get(operator.klass, Fraction(0)) + operator.cost_ps
    kinds = virtual.collectives_ps.keys() | real.collectives_ps.keys()
    return Budget(
        virtual_ps=virtual.total_ps / virtual.steps,
        real_ps=real.total_ps / real.steps,
        inventory_ps=sum((operator.inventory_ps for operator in operators), Fraction(0)),
        kernels_ps=by_class,
        collectives_ps={
            kind: Fraction(virtual.collectives_ps.get(kind, 0), virtual.steps)
            - Fraction(real.collectives_ps.get(kind, 0), real.steps)
            for kind in kinds
        },
        host_ps=virtual.host_ps / virtual.steps - real.host_ps / real.steps,
        overlap_ps=Fraction(real.overlap_ps, real.steps) - Fraction(virtual.overlap_ps, virtual.steps),
        operators=tuple(operators),
    )


def union(intervals: Iterable[Interval]) -> list[Interval]:
    """The union as disjoint intervals in order."""
    merged: list[Interval] = []
    for begin, end in sorted(intervals):
        if merged and begin <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        elif end > begin:
            merged.append((begin, end))
    return merged


def length(intervals: Iterable[Interval]) -> int:
    """Sum of the lengths."""
    return sum(end - begin for begin, end in intervals)


def parts_of(
    *, steps: int, total_ps: Fraction, kernels: Iterable[tuple[str, str, Interval]],
    collectives: Iterable[tuple[str, Interval]],
) -> StepParts:  # fmt: skip
    """Makes StepParts of kernels (name, class, interval) and collectives (kind, interval).

    Collectives of two kinds that run at once count for both; that, and kernels beside kernels or collectives,
    is `overlap_ps`: the sum of all less the union of all.
    """
    works: dict[str, Work] = {}
    everything: list[Interval] = []
    for name, klass, (begin, end) in kernels:
        old = works.get(name)
        works[name] = Work(
            klass=old.klass if old else klass,
            count=(old.count if old else 0) + 1,
            total_ps=(old.total_ps if old else 0) + end - begin,
        )
        everything.append((begin, end))
    by_kind: dict[str, list[Interval]] = {}
    for kind, interval in collectives:
        by_kind.setdefault(kind, []).append(interval)
        everything.append(interval)
    collective_ps = {kind: length(union(intervals)) for kind, intervals in by_kind.items()}
    counted = sum(work.total_ps for work in works.values()) + sum(collective_ps.values())
    return StepParts(
        steps=steps, total_ps=total_ps, kernels=works, collectives_ps=collective_ps,
        overlap_ps=counted - length(union(everything)),
    )  # fmt: skip
