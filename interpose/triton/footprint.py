"""What one launch of a Triton kernel does: bytes by argument, products, instructions; from its Triton IR.

A few programs of the grid are followed with the launch's own integer arguments, and their counts scaled to
the whole grid. Loops are followed twice (their first and their middle trip) and scaled to their length, so
that triangular loops (causal attention) come out at their mean.
"""

from __future__ import annotations

from collections.abc import Sequence

from interpose.triton.counts import Footprint
from interpose.triton.ir import Function, UnreadableIr
from interpose.triton.program import Program
from interpose.triton.tracer import CountOf
from interpose.triton.values import Value, unknown

PROGRAMS = 4
"""How many programs of a grid are followed."""


def written_arguments(functions: dict[str, Function], entry: str) -> frozenset[int]:
    """Arguments that any store in the text may reach, whether or not a launch gets there."""
    try:
        tracer = Program(functions, Footprint(), lambda _: None, follow_all=True)
        function = functions[entry]
        values = [
            unknown(kind, i if kind.pointer else None) for i, (_, kind) in enumerate(function.arguments)
        ]
        tracer.call(function, values)
    except (LookupError, TypeError, ValueError) as error:
        raise UnreadableIr(f"{type(error).__name__}: {error}") from error
    return frozenset(tracer.stored)


def footprint(
    functions: dict[str, Function],
    entry: str,
    *,
    grid: tuple[int, int, int],
    arguments: Sequence[int | float | bool | None],
    count_of: CountOf,
) -> Footprint:
    """Counts what a launch of function `entry` does.

    `arguments` are the values of the function's integer arguments by position (None for tensors and for what
    is not known). Raises UnreadableIr where the IR is beyond this module.
    """
    total = grid[0] * grid[1] * grid[2]
    counts = Footprint()
    if total == 0:
        return counts
    followed = min(total, PROGRAMS)
    function = functions[entry]
    try:
        for i in range(followed):
            linear = int((i + 0.5) * total / followed)
            place = (linear % grid[0], linear // grid[0] % grid[1], linear // (grid[0] * grid[1]))
            program = Program(functions, counts, count_of, place=place, grid=grid, weight=total / followed)
            values = [
                unknown(kind, position)
                if kind.pointer and not kind.shape
                else Value(kind, given, position if kind.pointer else None)
                for position, ((_, kind), given) in enumerate(zip(function.arguments, arguments))
            ]
            values = [Value(v.type, 0, v.base) if v.type.pointer else v for v in values]
            program.call(function, values)
            counts.rounds += program.rounds / followed
    except (LookupError, TypeError, ValueError, OverflowError) as error:
        raise UnreadableIr(f"{type(error).__name__}: {error}") from error
    return counts
