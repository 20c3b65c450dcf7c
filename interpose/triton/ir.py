"""Reads Triton IR (the text that Triton keeps as `ttir`) into plain values: operations, blocks, regions.

Only what a cost needs is kept: names, operands, types, a few attributes. Unknown operations stay as they are.
The grammar is MLIR's textual form as Triton 3.x prints it (mlir.llvm.org/docs/LangRef, "Triton IR dialects").
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field


class UnreadableIr(ValueError):
    """The text is not the Triton IR that this module knows; the text of the error has the line."""


@dataclass(frozen=True)
class Type:
    """A type: element name (`bf16`, `i32`), shape of a tensor (empty: a scalar), whether it is an address."""

    element: str
    shape: tuple[int, ...] = ()
    pointer: bool = False

    @property
    def is_float(self) -> bool:
        """Whether elements are floating-point numbers of any width."""
        return not self.pointer and self.element[:1] in ("f", "b", "t") and self.element != "bool"

    @property
    def item_bytes(self) -> float:
        """Bytes of one element (of what is pointed at, for an address)."""
        digits = re.search(r"(\d+)", self.element)
        bits = 8 if self.element.startswith("f8") else int(digits.group(1)) if digits else 32
        return max(bits, 8) / 8

    @property
    def numel(self) -> int:
        """Elements of the tensor; 1 for a scalar."""
        count = 1
        for size in self.shape:
            count *= size
        return count


@dataclass
class Operation:
    """One operation: `results` and `operands` are SSA names, `text` everything after the name."""

    name: str
    results: tuple[str, ...]
    operands: tuple[str, ...]
    text: str
    types: tuple[Type, ...]
    regions: list[list[Block]] = field(default_factory=list)


@dataclass
class Block:
    """A basic block: its label (empty for the first), arguments, operations."""

    label: str = ""
    arguments: tuple[str, ...] = ()
    operations: list[Operation] = field(default_factory=list)


@dataclass(frozen=True)
class Function:
    """A function: name, (SSA name, type) of each argument, blocks."""

    name: str
    arguments: tuple[tuple[str, Type], ...]
    blocks: list[Block]


_RESULTS = re.compile(r"^((?:%[\w$.-]+(?::\d+)?(?:, )?)+) = ")
_NAME = re.compile(r'^"?([A-Za-z_][\w$.]*)"?')
_VALUE = re.compile(r"%[\w$.-]+(?:#\d+)?")
_FUNCTION = re.compile(r"^tt\.func (?:public |private )?@([\w$.\"<>-]+)\((.*)\)")
_TYPE_START = re.compile(r"tensor<|!tt\.ptr<|!tt\.tensordesc<|\b(?:i|f|bf)\d+\w*\b|\bindex\b")


def without_locations(text: str) -> str:
    """Removes `loc(...)` annotations, which nest and may hold quoted parentheses."""
    out, position = [], 0
    while True:
        start = text.find("loc(", position)
        while start > 0 and text[start - 1] not in " ":
            start = text.find("loc(", start + 1)
        if start < 0:
            out.append(text[position:])
            return "".join(out)
        out.append(text[position:start].rstrip(" "))
        depth, position, quoted = 0, start + 3, False
        while position < len(text):
            character = text[position]
            if character == '"' and text[position - 1] != "\\":
                quoted = not quoted
            elif not quoted and character == "(":
                depth += 1
            elif not quoted and character == ")":
                depth -= 1
                if depth == 0:
                    break
            position += 1
        position += 1


def parse_type(text: str) -> Type:
    """Reads one type; a tensor of addresses is a pointer type with a shape."""
    text = text.strip()
    if text.startswith("tensor<"):
        inner = text[len("tensor<") : -1].split(", #")[0]
        shape: list[int] = []
        while True:
            head = re.match(r"(\d+)x", inner)
            if head is None:
                break
            shape.append(int(head.group(1)))
            inner = inner[head.end() :]
        element = parse_type(inner)
        return Type(element.element, tuple(shape), element.pointer)
    if text.startswith("!tt.ptr<"):
        inner_type = parse_type(text[len("!tt.ptr<") : -1].split(", ")[0])
        return Type(inner_type.element, inner_type.shape, True)
    if text.startswith("!tt.tensordesc<"):
        inside = text[len("!tt.tensordesc<") : -1]
        inner_type = parse_type(inside if inside.startswith("tensor<") else f"tensor<{inside}>")
        return Type(inner_type.element, inner_type.shape, True)
    return Type(text)


def find_types(text: str) -> tuple[Type, ...]:
    """Every type named in `text`, in order."""
    found: list[Type] = []
    position = 0
    while True:
        match = _TYPE_START.search(text, position)
        if match is None:
            return tuple(found)
        if match.group().endswith("<"):
            depth, end = 0, match.start()
            while end < len(text):
                depth += {"<": 1, ">": -1}.get(text[end], 0)
                end += 1
                if depth == 0 and text[end - 1] == ">":
                    break
        else:
            end = match.end()
        found.append(parse_type(text[match.start() : end]))
        position = end


def _type_part(text: str) -> str:
    """What follows the last ` : ` outside braces: the types of an operation."""
    depth = 0
    for position in range(len(text) - 1, 0, -1):
        character = text[position]
        if character in "}>)":
            depth += 0 if text[position - 1 : position + 1] == "->" else 1
        elif character in "{<(":
            depth -= 1
        elif (
            character == ":"
            and depth == 0
            and text[position - 1] == " "
            and text[position + 1 : position + 2] == " "
        ):
            return text[position + 2 :]
    return ""


def _operation(line: str) -> Operation:
    results: list[str] = []
    match = _RESULTS.match(line)
    if match is not None:
        for name in match.group(1).split(", "):
            base, _, count = name.partition(":")
            results.extend([f"{base}#{i}" for i in range(int(count))] if count else [base])
        line = line[match.end() :]
    named = _NAME.match(line)
    if named is None:
        raise UnreadableIr(f"cannot read the operation {line[:120]!r}")
    text = line[named.end() :].strip()
    types = _type_part(text.removesuffix("{").rstrip())
    operands = tuple(_VALUE.findall(text[: len(text) - len(types)] if types else text))
    return Operation(named.group(1), tuple(results), operands, text, find_types(types))


class _Reader:
    def __init__(self, lines: list[str]) -> None:
        self._lines = lines
        self._next = 0

    def functions(self) -> Iterator[Function]:
        while self._next < len(self._lines):
            line = self._lines[self._next]
            self._next += 1
            match = _FUNCTION.match(line)
            if match is not None:
                yield Function(match.group(1).strip('"'), self._arguments(match.group(2)), self._region())

    def _arguments(self, text: str) -> tuple[tuple[str, Type], ...]:
        found = []
        for part in re.split(r", (?=%)", re.sub(r" ?\{[^{}]*\}", "", text)):
            if part:
                name, _, kind = part.partition(": ")
                found.append((name.strip(), parse_type(kind.split(")")[0])))
        return tuple(found)

    def _region(self) -> list[Block]:
        """Reads up to the brace that closes the region; leaves its line as the next one."""
        blocks = [Block()]
        while self._next < len(self._lines):
            line = self._lines[self._next]
            if line.startswith("}"):
                return [b for b in blocks if b.operations or b.label] or [Block()]
            self._next += 1
            if line.startswith("^"):
                label = re.match(r"\^[\w$.-]+", line)
                inside = line[line.find("(") : line.rfind("):")] if "(" in line else ""
                blocks.append(
                    Block(label.group() if label else "", tuple(re.findall(r"(%[\w$.-]+):", inside)))
                )
                continue
            operation = _operation(line)
            if line.endswith("{"):
                self._regions(operation)
            blocks[-1].operations.append(operation)
        raise UnreadableIr("a region is not closed")

    def _regions(self, operation: Operation) -> None:
        while True:
            operation.regions.append(self._region())
            closing = self._lines[self._next]
            self._next += 1
            if not closing.endswith("{"):
                operation.text += " " + closing
                if not operation.types:
                    operation.types = find_types(_type_part("x " + closing))
                return


def read_functions(text: str) -> dict[str, Function]:
    """Every function of a module by name. Raises UnreadableIr."""
    lines = [line.strip() for line in without_locations(text).splitlines()]
    lines = [line for line in lines if line and not line.startswith("#")]
    functions = {function.name: function for function in _Reader(lines).functions()}
    if not functions:
        raise UnreadableIr("no function in it")
    return functions
