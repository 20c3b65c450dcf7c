"""The active flows and their fair rates, solved component by component."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from netsim.blocks import Block, ManyBlock
from netsim.maxmin import solve
from netsim.parts import Floats, Ints, Shape

MEMO_LIMIT = 4096


class Sharing:
    """Keeps the active blocks by shape and assigns max-min fair levels to the components that changed."""

    def __init__(self, capacity: list[float]) -> None:
        self.capacity = np.array(capacity, dtype=np.float64)
        self._usage = np.zeros(len(capacity), dtype=np.int32)
        self._active: dict[int, list[Block]] = {}
        self._shapes: dict[int, Shape] = {}
        self._numbers: dict[bytes, Shape] = {}
        self._overlap: dict[tuple[int, int], bool] = {}
        self._memo: dict[tuple[bytes, ...], list[Floats]] = {}
        self._local = np.zeros(len(capacity), dtype=np.int64)
        self.solves = 0

    def intern(self, shape: Shape) -> Shape:
        """The one object for shapes that are equal."""
        known = self._numbers.get(shape.key)
        if known is None:
            shape.number = len(self._numbers)
            self._numbers[shape.key] = known = shape
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

    def active(self) -> list[Block]:
        """All active blocks in canonical order."""
        return sorted((b for blocks in self._active.values() for b in blocks), key=lambda b: b.sort_key)

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
            if len(self._overlap) > 500_000:
                self._overlap.clear()
            known = bool(np.isin(a.touched, b.touched, assume_unique=True).any())
            self._overlap[key] = known
        return known

    def _solve(self, now_ps: int, numbers: list[int]) -> list[Block]:
        blocks = [b for n in numbers for b in self._active[n]]
        if len(blocks) > 1:
            blocks.sort(key=lambda b: b.sort_key)
        key = tuple(b.shape.key + b.active_key() for b in blocks)  # type: ignore[union-attr]
        levels = self._memo.get(key)
        if levels is None:
            self.solves += 1
            levels = self._levels(blocks)
            if len(self._memo) >= MEMO_LIMIT:
                self._memo.clear()
            self._memo[key] = levels
        for block, level in zip(blocks, levels):
            block.assign(now_ps, level)
        return blocks

    def system(
        self, blocks: list[Block]
    ) -> tuple[Ints, Ints, Floats, Floats, Floats, list[tuple[int, int, Ints]]]:
        """The solver's input for `blocks`, and (first row, last row, open flows) of each."""
        rows, columns, demand, caps = [], [], [], []
        slices: list[tuple[int, int, Ints]] = []
        base = 0
        for block in blocks:
            shape = block.shape
            assert shape is not None
            if isinstance(block, ManyBlock) and not block.open.all():
                open_flows = np.flatnonzero(block.open)
                keep = block.open[shape.row]
                renumber = np.cumsum(block.open) - 1
                rows.append(renumber[shape.row[keep]] + base)
                columns.append(shape.links[keep])
                demand.append(shape.demand[keep])
                caps.append(shape.level_caps[open_flows])
            else:
                open_flows = np.arange(shape.flows)
                rows.append(shape.row + base)
                columns.append(shape.links)
                demand.append(shape.demand)
                caps.append(shape.level_caps)
            slices.append((base, base + len(open_flows), open_flows))
            base += len(open_flows)
        all_columns = np.concatenate(columns)
        used = np.unique(all_columns)
        self._local[used] = np.arange(len(used))
        return (
            np.concatenate(rows),
            self._local[all_columns],
            np.concatenate(demand),
            np.concatenate(caps),
            self.capacity[used],
            slices,
        )

    def _levels(self, blocks: list[Block]) -> list[Floats]:
        if len(blocks) == 1 and blocks[0].shape is not None and blocks[0].shape.flows == 1:
            shape = blocks[0].shape
            share = self.capacity[shape.links] / shape.demand
            return [np.minimum(shape.level_caps, share.min(initial=np.inf))]
        rows, columns, demand, caps, capacity, slices = self.system(blocks)
        level = solve(rows, columns, demand, caps, capacity)
        result = []
        for block, (first, last, open_flows) in zip(blocks, slices):
            assert block.shape is not None
            full = np.zeros(block.shape.flows)
            full[open_flows] = level[first:last]
            result.append(full)
        return result
