"""Follows one program (thread block) of a Triton kernel and counts what it does."""

from __future__ import annotations

import math
import re
from collections.abc import Callable

import numpy as np

from interpose.triton.ir import Operation
from interpose.triton.memory_operations import MemoryOperations
from interpose.triton.values import Value, arithmetic, unknown

LONGEST_LOOP = 1 << 26


class Program(MemoryOperations):
    """One program of the grid: products, calls, branches and loops on top of everything else."""

    def _op_tt_dot(self, operation: Operation, operands: list[Value]) -> list[Value]:
        a, b, out = operation.types[0], operation.types[1], operation.types[-1]
        precision = re.search(r"inputPrecision = (\w+)", operation.text)
        element, times = a.element, 1.0
        if a.element == "f32" and precision is not None and precision.group(1) != "ieee":
            element = "bf16" if precision.group(1).startswith("bf16") else "tf32"
            times = float(precision.group(1).rpartition("x")[2]) if "x" in precision.group(1) else 1.0
        flops = 2.0 * math.prod(a.shape) * b.shape[-1] * times
        self._counts.dot_flops[element] += flops * self._weight
        return [unknown(out)]

    def _op_tt_dot_scaled(self, operation: Operation, operands: list[Value]) -> list[Value]:
        out = operation.types[-1]
        tiles = [kind for kind in operation.types if len(kind.shape) >= 2]
        flops = 2.0 * math.prod(tiles[0].shape) * out.shape[-1]
        self._counts.dot_flops["f8E4M3FN"] += flops * self._weight
        return [unknown(out)]

    def _op_tt_call(self, operation: Operation, operands: list[Value]) -> list[Value]:
        name = re.match(r"@([\w$.\"<>-]+)", operation.text)
        function = self._functions.get(name.group(1).strip('"')) if name else None
        if function is None:
            return self._other(operation, operands)
        return self.call(function, operands)

    # Control flow -----------------------------------------------------------------------------------------

    def _op_scf_if(self, operation: Operation, operands: list[Value]) -> list[Value]:
        condition = operands[0].data
        if condition is not None and not isinstance(condition, np.ndarray) and not self._follow_all:
            chosen = 0 if condition else 1
            return self._blocks(operation.regions[chosen]) if chosen < len(operation.regions) else []
        weight = self._weight
        if not self._follow_all:
            self._weight = weight / 2
        results = [self._blocks(region) for region in operation.regions]
        self._weight = weight
        if len(results) == 2:
            return [
                y if _same(y, n) else unknown(y.type, y.base if y.base is not None else n.base)
                for y, n in zip(*results)
            ]
        return []

    def _op_scf_for(self, operation: Operation, operands: list[Value]) -> list[Value]:
        name, first, end, step = operation.operands[0], *operands[1:4]
        names = operation.operands[4::2]
        state = operands[5::2]

        def body(trip: float, carried: list[Value]) -> list[Value]:
            start = arithmetic("arith.addi", first.data, None if step.data is None else trip * step.data)
            self._environment[name] = Value(first.type, start)
            self._environment.update(zip(names, carried))
            return self._blocks(operation.regions[0])

        trips: float | None = None
        if None not in (first.data, end.data, step.data) and step.data:
            trips = max(0.0, (end.data - first.data) / step.data)
            if not isinstance(end.data, float) and not isinstance(first.data, float):
                trips = math.ceil(trips)
        return self._loop(trips, state, body)

    def _op_scf_while(self, operation: Operation, operands: list[Value]) -> list[Value]:
        names, state = operation.operands[0::2], operands[1::2]
        before, after = operation.regions[0], operation.regions[1]
        passed: list[Value] = state

        def goes_on(carried: list[Value]) -> bool | None:
            nonlocal passed
            self._environment.update(zip(names, carried))
            condition, *passed = self._blocks(before)
            known = condition.data is not None and not isinstance(condition.data, np.ndarray)
            return bool(condition.data) if known else None

        def body(trip: float, carried: list[Value]) -> list[Value]:
            goes_on(carried)
            self._environment.update(zip(after[0].arguments, passed))
            return self._blocks(after)

        if self._follow_all:
            self._loop(1.0, state, body)
            return passed
        starts = goes_on(state)
        if starts is False:
            return passed
        # A dry trip tells how far the carried numbers move; then the end is searched for.
        weight, self._weight, loads = self._weight, 0.0, self._loads
        moved = body(0.0, state)
        self._weight, self._loads = weight, loads
        trips: float | None = None
        if starts is not None and goes_on(moved) is not None:
            low, high = 1, 2
            while high < LONGEST_LOOP and goes_on(_after(state, moved, high)) is True:
                low, high = high, high * 2
            while high - low > 1:
                middle = (low + high) // 2
                low, high = (middle, high) if goes_on(_after(state, moved, middle)) else (low, middle)
            trips = float(high) if goes_on(moved) else 1.0
        final = self._loop(trips, state, body)
        goes_on(final)
        return passed

    def _loop(
        self, trips: float | None, state: list[Value], body: Callable[[float, list[Value]], list[Value]]
    ) -> list[Value]:
        """Counts `trips` trips; returns the carried values afterwards."""
        if trips is None:
            if not self._follow_all:
                self._counts.unknown_loops += 1
            trips = 1.0
        if trips <= 0:
            return state
        self._wait()
        weight = self._weight
        self._weight = weight * min(trips, 1.0)
        moved = body(0.0, state)
        self._wait()
        if trips > 1:
            self._weight = weight * (trips - 1)
            middle = math.floor(trips / 2)
            body(float(middle) if middle != trips / 2 else middle, _after(state, moved, middle))
            self._wait()
        self._weight = weight
        return _after(state, moved, math.ceil(trips))


def _same(a: Value, b: Value) -> bool:
    if isinstance(a.data, np.ndarray) or isinstance(b.data, np.ndarray):
        return a.data is b.data
    return a.data == b.data and a.base == b.base


def _after(state: list[Value], moved: list[Value], trips: int) -> list[Value]:
    """The carried values after `trips` trips that each move them as the first one did."""
    found = []
    for old, new in zip(state, moved):
        if old.data is None or new.data is None or isinstance(old.data, bool) or isinstance(new.data, bool):
            found.append(unknown(old.type, old.base))
        elif old.data is new.data:
            found.append(old)
        else:
            found.append(Value(old.type, old.data + (new.data - old.data) * trips, old.base))
    return found
