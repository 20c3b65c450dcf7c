"""The frame in which one program (thread block) of a Triton kernel is followed, block by block."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from interpose.triton.counts import Footprint
from interpose.triton.instructions import instruction_weight
from interpose.triton.ir import Block, Function, Operation, Type
from interpose.triton.values import Value, arithmetic, compare, expand, unknown

CountOf = Callable[[int], float | None]
"""Mean of the integers in the tensor that an argument points to; None where they are not known."""


class Tracer:
    """What operations share: the values at hand, how often the code runs, the totals."""

    def __init__(
        self,
        functions: dict[str, Function],
        counts: Footprint,
        count_of: CountOf,
        *,
        place: tuple[int, int, int] = (0, 0, 0),
        grid: tuple[int, int, int] = (1, 1, 1),
        follow_all: bool = False,
    ) -> None:
        self._functions = functions
        self._counts = counts
        self._count_of = count_of
        self._place = place
        self._grid = grid
        self._weight = 1.0  # executions of the code at hand, per program
        self._follow_all = follow_all
        self._environment: dict[str, Value] = {}
        self._loads = False  # since the last wait for memory
        self.rounds = 0.0
        self.stored: set[int] = set()

    def call(self, function: Function, values: Sequence[Value]) -> list[Value]:
        """Follows a function; returns what it returns."""
        outer = self._environment
        self._environment = {name: value for (name, _), value in zip(function.arguments, values)}
        result = self._blocks(function.blocks)
        self._environment = outer
        self._wait()
        return result

    def _wait(self) -> None:
        if self._loads:
            self.rounds += self._weight
            self._loads = False

    def _blocks(self, blocks: list[Block]) -> list[Value]:
        """Follows blocks from the first; returns the operands of what ends the last one."""
        labels = {block.label: i for i, block in enumerate(blocks)}
        index, jumps = 0, 0
        while True:
            last: list[Value] = []
            target: str | None = None
            for operation in blocks[index].operations:
                if operation.name in (
                    "scf.yield",
                    "tt.return",
                    "scf.condition",
                    "tt.reduce.return",
                    "tt.scan.return",
                ):
                    last = [self._value(name) for name in operation.operands]
                elif operation.name in ("cf.br", "cf.cond_br"):
                    target = self._jump(operation, blocks, labels)
                else:
                    self._execute(operation)
            jumps += 1
            if target is None and self._follow_all and index + 1 < len(blocks):
                index += 1
                continue
            if target is None or jumps > 64:
                return last
            index = index + 1 if self._follow_all else labels[target]
            if index >= len(blocks):
                return last

    def _jump(self, operation: Operation, blocks: list[Block], labels: dict[str, int]) -> str:
        targets = re.findall(r"(\^[\w$.-]+)(?:\(([^:)]*)(?::[^)]*)?\))?", operation.text)
        chosen = 0
        if operation.name == "cf.cond_br":
            condition = self._value(operation.operands[0]).data
            # Where nothing tells, the program goes on: the other way is an early return.
            taken = (
                bool(condition) if condition is not None and not isinstance(condition, np.ndarray) else None
            )
            if taken is None:
                operations = [len(blocks[labels[label]].operations) for label, _ in targets[:2]]
                chosen = operations.index(max(operations))
            else:
                chosen = 0 if taken else 1
        label, given = targets[chosen]
        for name, source in zip(blocks[labels[label]].arguments, re.findall(r"%[\w$.-]+(?:#\d+)?", given)):
            self._environment[name] = self._value(source)
        return label

    def _value(self, name: str) -> Value:
        found = self._environment.get(name)
        if found is None:
            found = self._environment.get(f"{name}#0")
        return found if found is not None else Value(Type("i32"))

    def _execute(self, operation: Operation) -> None:
        handler = getattr(self, "_op_" + operation.name.replace(".", "_"), None)
        operands = [self._value(name) for name in operation.operands]
        if handler is not None:
            results = handler(operation, operands)
        elif operation.name in _BINARY:
            results = [self._binary(operation, operands)]
        elif operation.name in _SAME:
            results = [
                Value(
                    operation.types[-1] if operation.types else operands[0].type,
                    operands[0].data,
                    operands[0].base,
                )
            ]
        else:
            results = self._other(operation, operands)
        self._count_instructions(operation, operands)
        for name, value in zip(operation.results, results):
            self._environment[name] = value

    def _count_instructions(self, operation: Operation, operands: list[Value]) -> None:
        if not operation.types:
            return
        weight = instruction_weight(operation)
        if weight:
            largest = max(
                max(kind.numel for kind in operation.types), max((v.type.numel for v in operands), default=1)
            )
            self._counts.instructions += weight * largest * self._weight

    def _other(self, operation: Operation, operands: list[Value]) -> list[Value]:
        base = next((v.base for v in operands if v.base is not None), None)
        kind = operation.types[-1] if operation.types else Type("i32")
        results = [unknown(kind, base if kind.pointer else None) for _ in operation.results]
        if len(results) > 1 and len(operation.types) >= len(results):
            results = [unknown(t, base if t.pointer else None) for t in operation.types[-len(results) :]]
        return results

    # Integers and addresses -------------------------------------------------------------------------------

    def _binary(self, operation: Operation, operands: list[Value]) -> Value:
        kind = operation.types[-1] if operation.types else operands[0].type
        return Value(kind, arithmetic(operation.name, operands[0].data, operands[1].data))

    def _op_arith_constant(self, operation: Operation, operands: list[Value]) -> list[Value]:
        text = operation.text
        kind = operation.types[-1] if operation.types else Type("i1")
        match = re.match(r"(?:\{[^}]*\} )?(?:dense<)?(-?\d+|true|false)(?:>| :|$)", text)
        data: Any = None
        if match is not None and not kind.is_float:
            word = match.group(1)
            data = word == "true" if word in ("true", "false") else int(word)
        return [Value(kind, data)]

    def _op_tt_get_program_id(self, operation: Operation, operands: list[Value]) -> list[Value]:
        return [Value(Type("i32"), None if self._follow_all else self._place["xyz".index(operation.text[0])])]

    def _op_tt_get_num_programs(self, operation: Operation, operands: list[Value]) -> list[Value]:
        return [Value(Type("i32"), None if self._follow_all else self._grid["xyz".index(operation.text[0])])]

    def _op_tt_make_range(self, operation: Operation, operands: list[Value]) -> list[Value]:
        ends = {name: int(value) for name, value in re.findall(r"(start|end) = (\d+)", operation.text)}
        return [
            Value(operation.types[-1], None if self._follow_all else np.arange(ends["start"], ends["end"]))
        ]

    def _op_tt_splat(self, operation: Operation, operands: list[Value]) -> list[Value]:
        return [Value(operation.types[-1], operands[0].data, operands[0].base)]

    _op_tt_broadcast = _op_tt_splat

    def _op_tt_expand_dims(self, operation: Operation, operands: list[Value]) -> list[Value]:
        match = re.search(r"axis = (\d+)", operation.text)
        axis = int(match.group(1)) if match else 0
        return [Value(operation.types[-1], expand(operands[0].data, axis), operands[0].base)]

    def _op_tt_trans(self, operation: Operation, operands: list[Value]) -> list[Value]:
        data = operands[0].data
        match = re.search(r"order = array<i32: ([\d, ]+)>", operation.text)
        if isinstance(data, np.ndarray):
            order = tuple(map(int, match.group(1).split(", "))) if match else None
            data = np.transpose(np.broadcast_to(data, operands[0].type.shape), order)
        return [Value(operation.types[-1], data, operands[0].base)]

    def _op_tt_reshape(self, operation: Operation, operands: list[Value]) -> list[Value]:
        data, kind = operands[0].data, operation.types[-1]
        if isinstance(data, np.ndarray):
            data = np.broadcast_to(data, operands[0].type.shape).reshape(kind.shape)
        return [Value(kind, data, operands[0].base)]

    def _op_tt_addptr(self, operation: Operation, operands: list[Value]) -> list[Value]:
        kind = operation.types[0] if operation.types else operands[0].type
        return [Value(kind, arithmetic("arith.addi", operands[0].data, operands[1].data), operands[0].base)]

    def _op_arith_cmpi(self, operation: Operation, operands: list[Value]) -> list[Value]:
        predicate = operation.text.split(",")[0].strip()
        kind = Type("i1", operands[0].type.shape)
        return [Value(kind, compare(predicate, operands[0].data, operands[1].data))]

    def _op_arith_select(self, operation: Operation, operands: list[Value]) -> list[Value]:
        condition, yes, no = operands
        kind = operation.types[-1] if operation.types else yes.type
        base = yes.base if yes.base is not None else no.base
        if condition.data is None or yes.data is None or no.data is None:
            return [unknown(kind, base)]
        if isinstance(condition.data, np.ndarray):
            return [Value(kind, np.where(condition.data, yes.data, no.data), base)]
        return [yes if condition.data else no]


_BINARY = frozenset(
    f"arith.{name}"
    for name in (
        *("addi", "subi", "muli", "divsi", "divui", "floordivsi", "ceildivsi", "ceildivui", "remsi", "remui"),
        *("minsi", "minui", "maxsi", "maxui", "andi", "ori", "xori", "shli", "shrsi", "shrui"),
    )
)
_SAME = frozenset(
    [
        *("arith.extsi", "arith.extui", "arith.trunci", "arith.index_cast", "arith.index_castui"),
        *("tt.advance", "tt.make_tensor_ptr", "tt.make_tensor_descriptor", "tt.bitcast", "arith.bitcast"),
        *("tt.int_to_ptr", "tt.ptr_to_int"),
    ]
)
