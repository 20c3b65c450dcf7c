"""A simulated rank's recorded steps, taken apart for an error budget."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

from phantom.results.budget import Interval, StepParts, parts_of
from phantom.results.budget_names import collective_kind, operator_name
from phantom.results.compare import MeasurementError
from phantom.timeline.recording import load


def virtual_parts(run_dir: Path, *, rank: int = 0) -> tuple[StepParts, tuple[int, int]]:
    """Returns the parts of the recorded steps of `rank` after step 0, and the first and last of them.

    Raises MeasurementError where no such step was recorded.
    """
    spool = load(run_dir).ranks.get(rank)
    steps = [step for step in spool.steps if step.index > 0] if spool is not None else []
    if spool is None or not steps:
        raise MeasurementError(
            f"{run_dir}: no detail of a step after step 0 of rank {rank} was recorded; run with "
            f"--timeline-steps 1:6"
        )
    begin_ps, end_ps = steps[0].begin_ps, steps[-1].end_ps
    kernels: list[tuple[str, str, Interval]] = []
    collectives: list[tuple[str, Interval]] = []
    for row, network in zip(spool.spans.tolist(), spool.communication.tolist()):
        start_ps, stop_ps, _, _, number = row
        inside = (max(start_ps, begin_ps), min(stop_ps, end_ps))
        if inside[1] <= inside[0]:
            continue
        kernel = spool.kernels[number]
        if network:
            collectives.append((collective_kind(kernel.name) or "transfer", inside))
        else:
            kernels.append((operator_name(kernel.name), kernel.klass, inside))
    parts = parts_of(
        steps=len(steps), total_ps=Fraction(end_ps - begin_ps), kernels=kernels, collectives=collectives
    )
    return parts, (steps[0].index, steps[-1].index)
