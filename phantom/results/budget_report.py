"""An error budget as text and as JSON."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

from phantom.results.budget import Budget, budget_of
from phantom.results.compare import MeasurementError
from phantom.results.kineto_parts import kineto_parts
from phantom.results.virtual_parts import virtual_parts

PS_PER_S = 10**12
SHOWN_OPERATORS = 10


@dataclass(frozen=True, kw_only=True)
class BudgetReport:
    """A budget, which steps it is of, and the real step while it was traced (s): the profiler slows it."""

    budget: Budget
    rank: int
    steps: tuple[int, int]
    traced_s: float

    @staticmethod
    def of(run_dir: Path, trace_file: Path, *, rank: int, real_s: float) -> BudgetReport:
        """Takes both sides apart; `real_s` is the step time that was measured without a profiler.

        What the profiler adds to the real step outside of operators is left out of the host's part by that.
        Raises MeasurementError for a file or a run that cannot be taken apart.
        """
        virtual, steps = virtual_parts(run_dir, rank=rank)
        real = kineto_parts(trace_file, known=virtual.kernels.keys())
        if not real.kernels:
            raise MeasurementError(f"{trace_file}: no operator and no kernel in the traced steps")
        traced_s = float(real.total_ps / real.steps) / PS_PER_S
        budget = budget_of(virtual, real.scaled(Fraction(real_s) * PS_PER_S))
        return BudgetReport(budget=budget, rank=rank, steps=steps, traced_s=traced_s)

    def plain(self) -> dict[str, Any]:
        """Everything in seconds per step, for JSON."""

        def s(ps: Fraction) -> float:
            return float(ps) / PS_PER_S

        budget = self.budget
        return {
            "rank": self.rank,
            "virtual_steps": list(self.steps),
            "virtual_s": s(budget.virtual_ps),
            "real_s": s(budget.real_ps),
            "traced_s": self.traced_s,
            "error_s": s(budget.error_ps),
            "inventory_s": s(budget.inventory_ps),
            "kernels_s": {name: s(part) for name, part in sorted(budget.kernels_ps.items())},
            "collectives_s": {name: s(part) for name, part in sorted(budget.collectives_ps.items())},
            "host_s": s(budget.host_ps),
            "overlap_s": s(budget.overlap_ps),
            "operators": [
                {
                    "op": o.name, "class": o.klass, "virtual_count": float(o.virtual_count),
                    "real_count": float(o.real_count), "virtual_s": s(o.virtual_mean_ps),
                    "real_s": s(o.real_mean_ps), "inventory_s": s(o.inventory_ps), "cost_s": s(o.cost_ps),
                }
                for o in budget.operators
            ],
        }  # fmt: skip

    def text(self) -> str:
        """The table of parts, then the operators that matter most."""
        from phantom.terminal.units import seconds

        budget = self.budget
        real = float(budget.real_ps)

        def signed(ps: Fraction) -> str:
            text = seconds(abs(float(ps)) / PS_PER_S)
            return ("-" if ps < 0 else "+") + text

        first, last = self.steps
        lines = [
            f"error budget of rank {self.rank}, steps {first} to {last} of the simulation "
            f"(real step {seconds(real / PS_PER_S)}, {seconds(self.traced_s)} while it was traced)"
        ]
        for name, part in budget.parts():
            lines.append(f"  {name:<28}{signed(part):>12}{float(part) / real:>+9.1%}")
        error = budget.error_ps
        lines.append(f"  {'sum = virtual - real':<28}{signed(error):>12}{float(error) / real:>+9.1%}")
        ranked = sorted(budget.operators, key=lambda o: -abs(o.inventory_ps) - abs(o.cost_ps))
        lines.append(f"  {'operator':<44}{'count':>13}{'mean each':>22}{'inventory':>12}{'cost':>12}")
        for o in ranked[:SHOWN_OPERATORS]:
            counts = f"{float(o.virtual_count):g}/{float(o.real_count):g}"
            means = (
                f"{seconds(float(o.virtual_mean_ps) / PS_PER_S)}/{seconds(float(o.real_mean_ps) / PS_PER_S)}"
            )
            lines.append(
                f"  {o.name[:43]:<44}{counts:>13}{means:>22}"
                f"{signed(o.inventory_ps):>12}{signed(o.cost_ps):>12}"
            )
        lines.append(
            "  (counts and times: virtual/real, per step; a part above 0 makes the simulation slower)"
        )
        return "\n".join(lines)
