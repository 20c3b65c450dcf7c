"""The active flows and their fair rates, solved component by component."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from weakref import WeakValueDictionary

import numpy as np

from netsim.parts import Floats, Ints, Shape
from netsim.sharing.blocks import Block, ManyBlock
from netsim.sharing.maxmin import solve

MEMO_FLOWS = 1_000_000
"""Bound on the solutions kept, in flows: 8 MB."""

OVERLAP_LIMIT = 200_000


@dataclass(frozen=True)
class Unit:
    """Active blocks of one shape with the same flows open: one variable per flow, counted `len(blocks)`
    times.
    """

    key: bytes
    shape: Shape
    blocks: list[Block]


class Sharing:
    """Keeps the active blocks by shape and assigns max-min fair levels to the components that changed."""

    def __init__(self, capacity: list[float]) -> None:
        self.capacity = np.array(capacity, dtype=np.float64)
        self._usage = np.zeros(len(capacity), dtype=np.int32)
        self._active: dict[int, list[Block]] = {}
        self._shapes: dict[int, Shape] = {}
        # Shapes live as long as a plan or a running operation holds them.
        self._known: WeakValueDictionary[bytes, Shape] = WeakValueDictionary()
        self._next_number = 0
        self._overlap: dict[tuple[int, int], bool] = {}
        self._memo: dict[tuple[tuple[bytes, int], ...], list[Floats]] = {}
        self._local = np.zeros(len(capacity), dtype=np.int64)
        self._memo_flows = 0

    def intern(self, shape: Shape) -> Shape:
        """The one object for shapes that are equal."""
        known = self._known.get(shape.key)
        if known is None:
            shape.number = self._next_number
            self._next_number += 1
            self._known[shape.key] = known = shape
        return known

    def clear(self) -> None:
        """Forget all active blocks."""
        self._usage[:] = 0
        self._active.clear()
        self._shapes.clear()

    def add(self, block: Block) -> None:
        """Make a block active."""
        shape = block.shape
        assert shape is not None
        blocks = self._active.get(shape.number)
        if blocks is None:
            self._active[shape.number] = [block]
            self._shapes[shape.number] = shape
            self._usage[shape.touched] += 1
        else:
            blocks.append(block)

    def remove(self, block: Block) -> None:
        """Take an ended block out."""
        shape = block.shape
        assert shape is not None
        blocks = self._active[shape.number]
        blocks.remove(block)
        if not blocks:
            del self._active[shape.number], self._shapes[shape.number]
            self._usage[shape.touched] -= 1

    def numbers(self) -> list[int]:
        """Numbers of the active shapes."""
        return sorted(self._active)

    def update(self, now_ps: int, changed: Iterable[Shape]) -> list[Block]:
        """Solve every component that touches a link of `changed` shapes; return the blocks that got their
        levels.
        """
        unvisited = set(self._active)
        touched: list[Block] = []
        for seed in changed:
            for start in self._touching(seed, unvisited):
                if start not in unvisited:
                    continue
                unvisited.discard(start)
                component = [start]
                for number in component:
                    if not unvisited:
                        break
                    more = self._touching(self._shapes[number], unvisited)
                    unvisited.difference_update(more)
                    component += more
                touched += self._solve(now_ps, component)
        return touched

    def _touching(self, shape: Shape, candidates: set[int]) -> list[int]:
        """Numbers among `candidates` whose shapes share a link with `shape`, sorted."""
        own = 1 if shape.number in self._active else 0
        if not candidates or not (self._usage[shape.touched] > own).any():
            return [shape.number] if shape.number in candidates else []
        return sorted(n for n in candidates if n == shape.number or self._overlaps(shape, self._shapes[n]))

    def _overlaps(self, a: Shape, b: Shape) -> bool:
        key = (a.number, b.number) if a.number < b.number else (b.number, a.number)
        known = self._overlap.get(key)
        if known is None:
            if len(self._overlap) > OVERLAP_LIMIT:
                self._overlap.clear()
            known = bool(np.isin(a.touched, b.touched, assume_unique=True).any())
            self._overlap[key] = known
        return known

    def _solve(self, now_ps: int, numbers: list[int]) -> list[Block]:
        units = self._units(numbers)
        key = tuple((unit.key, len(unit.blocks)) for unit in units)
        levels = self._memo.get(key)
        if levels is None:
            levels = self._levels(units)
            self._memo_flows += sum(len(level) for level in levels) + 16
            if self._memo_flows > MEMO_FLOWS:
                self._memo.clear()
                self._memo_flows = 0
            self._memo[key] = levels
        touched: list[Block] = []
        for unit, level in zip(units, levels):
            touched += [block for block in unit.blocks if block.assign(now_ps, level)]
        return touched

    def _units(self, numbers: list[int]) -> list[Unit]:
        """Blocks that the network cannot tell apart, together, in an order that depends on nothing else."""
        units = []
        for number in numbers:
            shape, blocks = self._shapes[number], self._active[number]
            if shape.flows == 1:
                units.append(Unit(shape.key, shape, blocks))
                continue
            by_open: dict[bytes, list[Block]] = {}
            for block in blocks:
                by_open.setdefault(shape.key + block.active_key(), []).append(block)
            units += [Unit(key, shape, same) for key, same in by_open.items()]
        if len(units) > 1:
            units.sort(key=lambda unit: unit.key)
        return units

    def system(
        self, numbers: list[int]
    ) -> tuple[Ints, Ints, Floats, Floats, Floats, list[tuple[Unit, Ints]]]:
        """The solver's input for the shapes `numbers`, and each unit with its open flows."""
        return self._system(self._units(numbers))

    def _system(
        self, units: list[Unit]
    ) -> tuple[Ints, Ints, Floats, Floats, Floats, list[tuple[Unit, Ints]]]:
        rows, columns, demand, caps = [], [], [], []
        members: list[tuple[Unit, Ints]] = []
        base = 0
        for unit in units:
            shape, count = unit.shape, len(unit.blocks)
            first = unit.blocks[0]
            if isinstance(first, ManyBlock) and not first.open.all():
                open_flows = np.flatnonzero(first.open)
                keep = first.open[shape.row]
                renumber = np.cumsum(first.open) - 1
                rows.append(renumber[shape.row[keep]] + base)
                columns.append(shape.links[keep])
                demand.append(shape.demand[keep] * count)
                caps.append(shape.level_caps[open_flows])
            else:
                open_flows = shape.all_flows
                rows.append(shape.row + base if base else shape.row)
                columns.append(shape.links)
                demand.append(shape.demand * count if count > 1 else shape.demand)
                caps.append(shape.level_caps)
            members.append((unit, open_flows))
            base += len(open_flows)
        all_rows, all_columns, all_demand = (
            np.concatenate(rows),
            np.concatenate(columns),
            np.concatenate(demand),
        )
        if len(units) == 1 and len(all_columns) > 4096:
            # Links that the same flows cross with the same load are one link, of the smallest capacity.
            kept = np.isin(all_columns, units[0].shape.representatives(self.capacity), kind="table")
            all_rows, all_columns, all_demand = all_rows[kept], all_columns[kept], all_demand[kept]
        used = np.unique(all_columns)
        self._local[used] = np.arange(len(used))
        return (
            all_rows,
            self._local[all_columns],
            all_demand,
            np.concatenate(caps),
            self.capacity[used],
            members,
        )

    def _levels(self, units: list[Unit]) -> list[Floats]:
        if len(units) == 1 and units[0].shape.flows == 1:
            shape = units[0].shape
            share = self.capacity[shape.links] / (shape.demand * len(units[0].blocks))
            return [np.minimum(shape.level_caps, share.min(initial=np.inf))]
        rows, columns, demand, caps, capacity, members = self._system(units)
        level = solve(rows, columns, demand, caps, capacity)
        result = []
        first = 0
        for unit, open_flows in members:
            full = np.zeros(unit.shape.flows)
            full[open_flows] = level[first : first + len(open_flows)]
            first += len(open_flows)
            result.append(full)
        return result
