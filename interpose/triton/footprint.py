"""What one launch of a Triton kernel does: bytes by argument, products, instructions; from its Triton IR.

A few programs of the grid are followed with the launch's own integer arguments (more where those differ),
and their counts scaled to the whole grid. Loops are followed twice (their first and their middle trip) and
scaled to their length, so that triangular loops (causal attention) come out at their mean.
"""

from __future__ import annotations

from collections.abc import Sequence

from interpose.triton.counts import Footprint, combine
from interpose.triton.ir import Function, UnreadableIr
from interpose.triton.program import Program
from interpose.triton.tracer import CountOf
from interpose.triton.values import Value, unknown

FEW_PROGRAMS = 4
"""How many programs of a grid are followed where they do the same."""

MANY_PROGRAMS = 64
"""How many are followed at most where the first few differ."""


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
    if total == 0:
        return Footprint()
    try:
        for most in (FEW_PROGRAMS, MANY_PROGRAMS):
            places = sampled_places(grid, most)
            samples = [_follow(functions, entry, grid, place, arguments, count_of) for place in places]
            if all(sample.resembles(samples[0]) for sample in samples):
                break
    except (LookupError, TypeError, ValueError, OverflowError) as error:
        raise UnreadableIr(f"{type(error).__name__}: {error}") from error
    return combine(samples, programs=total)


def sampled_places(grid: tuple[int, int, int], most: int) -> list[tuple[int, int, int]]:
    """Places of the grid that stand for all: every one of a small grid; else x evenly, y and z scattered.

    A short x is covered as a whole, since that is where kernels split their work by kind (FlexAttention's
    backward). Multiples of irrational numbers (golden ratio, square root of two) scatter without repeating
    x's pattern.
    """
    width, height, depth = grid
    if width * height * depth <= most:
        return [(x, y, z) for z in range(depth) for y in range(height) for x in range(width)]
    number = most if width > most else width * max(1, most // (2 * width))
    return [
        (
            int(i % width if width <= most else (i + 0.5) * width / most),
            int((i + 0.5) * 0.6180339887498949 % 1 * height),
            int((i + 0.5) * 0.4142135623730951 % 1 * depth),
        )
        for i in range(number)
    ]


def _follow(
    functions: dict[str, Function],
    entry: str,
    grid: tuple[int, int, int],
    place: tuple[int, int, int],
    arguments: Sequence[int | float | bool | None],
    count_of: CountOf,
) -> Footprint:
    """What the program at this place of the grid does by itself."""
    counts = Footprint()
    program = Program(functions, counts, count_of, place=place, grid=grid)
    function = functions[entry]
    values = [
        # An address starts at its tensor's first element.
        Value(kind, 0 if kind.pointer else given, position if kind.pointer else None)
        for position, ((_, kind), given) in enumerate(zip(function.arguments, arguments))
    ]
    program.call(function, values)
    counts.rounds = program.rounds
    return counts
