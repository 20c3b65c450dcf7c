"""The network as the engine sees it: operations start, time advances, and can be taken back to any
uncommitted moment.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Mapping

import numpy as np

from netsim.cluster.spec import ClusterSpec
from netsim.errors import OperationError
from netsim.fabric.topology import Topology
from netsim.nccl.collectives import Planner
from netsim.operation import Choice, Operation
from netsim.parts import Part, Shape
from netsim.sharing.active import Sharing
from netsim.sharing.blocks import NEVER, Block, Flight, ManyBlock, SingleBlock
from netsim.sharing.maxmin import violations


class Network:
    """Carries operations over a cluster's links; all times are virtual picoseconds (int).

    `environment` is the job's (NCCL_* variables change NCCL's choices); `seed` feeds the hash of ECMP.
    Raises `ClusterError` where the job does not fit the cluster.
    """

    def __init__(
        self,
        cluster: ClusterSpec,
        *,
        nodes: int,
        gpus_per_node: int,
        environment: Mapping[str, str],
        seed: int,
    ) -> None:
        self.cluster = cluster
        self.topology = Topology(cluster, nodes=nodes, gpus_per_node=gpus_per_node)
        self.planner = Planner(self.topology, environment, seed=seed)
        self.events = 0
        self.keep_history = False
        """Keep every rate change of an operation until its end is committed, for `finished`."""
        self._sharing = Sharing(self.topology.capacity)
        self._now_ps = 0
        self._horizon_ps = 0
        self._open: dict[int, Flight] = {}
        self._finished: deque[Flight] = deque()
        self._queue: list[tuple[int, int, int, int, Block]] = []
        self._background = self._start_background()

    def start(self, op_id: int, op: Operation, start_ps: int) -> None:
        """Start `op` at `start_ps`, which must not be before the time already advanced to.

        Raises `OperationError` for an operation that cannot be carried out, `ValueError` for a time in the
        past.
        """
        if start_ps < self._now_ps:
            raise ValueError(
                f"operation {op_id} starts at {start_ps} ps, but the network is at {self._now_ps} ps"
            )
        if op_id in self._open:
            raise ValueError(f"operation {op_id} is already under way")
        self._launch(Flight(op_id, start_ps), self.planner.plan(op))

    def next_event_ps(self) -> int | None:
        """Time of the next internal event, None if nothing is under way."""
        queue = self._queue
        while queue and queue[0][3] != queue[0][4].version:
            heapq.heappop(queue)
        return queue[0][0] if queue else None

    def advance(self, to_ps: int) -> list[tuple[int, int]]:
        """Process all events up to and at `to_ps`; return completions (op_id, end_ps), by end and id."""
        done: list[tuple[int, int]] = []
        while True:
            next_ps = self.next_event_ps()
            if next_ps is None or next_ps > to_ps:
                break
            self._instant(next_ps, done)
        self._now_ps = max(self._now_ps, to_ps)
        done.sort(key=lambda item: (item[1], item[0]))
        return done

    def rollback(self, to_ps: int) -> None:
        """Undo everything after `to_ps`; operations that started later are forgotten.

        Raises `ValueError` for a time before the last commit.
        """
        if to_ps < self._horizon_ps:
            raise ValueError(
                f"cannot go back to {to_ps} ps: history before {self._horizon_ps} ps was committed"
            )
        if to_ps >= self._now_ps:
            for op_id in [i for i, f in self._open.items() if f.start_ps > to_ps]:
                self._drop(self._open.pop(op_id))
            return
        while self._finished and self._finished[-1].end_ps is not None and self._finished[-1].end_ps > to_ps:
            flight = self._finished.pop()
            flight.end_ps = None
            self._open[flight.op_id] = flight
        self._now_ps = to_ps
        self._open = {i: f for i, f in self._open.items() if f.start_ps <= to_ps}
        self._queue = []
        self._sharing.clear()
        for flight in [*self._open.values(), *self._background]:
            flight.open_blocks = 0
            for block in flight.blocks:
                block.rollback(to_ps)
                if block.end_ps is None:
                    flight.open_blocks += 1
                    if not block.waiting:
                        self._sharing.add(block)
                    if block.next_ps < NEVER:
                        self._queue.append((block.next_ps, flight.op_id, block.index, block.version, block))
        heapq.heapify(self._queue)

    def commit(self, to_ps: int) -> None:
        """Declare that no rollback will go before `to_ps`; history before it is dropped."""
        self._horizon_ps = max(self._horizon_ps, to_ps)
        finished = self._finished
        while finished and finished[0].end_ps is not None and finished[0].end_ps <= self._horizon_ps:
            finished.popleft()

    def finished(self, op_id: int) -> Flight | None:
        """An operation that has ended and whose end is not committed yet, with its rates (`keep_history`)."""
        return next((flight for flight in self._finished if flight.op_id == op_id), None)

    def describe(self, op: Operation) -> Choice:
        """Algorithm, protocol and channels that `op` would use, and its time on the idle network."""
        return self.planner.choice(op)

    def check(self) -> list[str]:
        """Violations of link capacities or of max-min fairness right now (none, unless netsim is wrong)."""
        numbers = self._sharing.numbers()
        if not numbers:
            return []
        rows, columns, demand, caps, capacity, members = self._sharing.system(numbers)
        levels = []
        for unit, open_flows in members:
            held = [np.atleast_1d(block.history[-1][2])[open_flows] for block in unit.blocks]
            if any(not np.array_equal(held[0], other) for other in held):
                return [f"equal operations {[b.flight.op_id for b in unit.blocks]} have different rates"]
            levels.append(held[0])
        return violations(rows, columns, demand, caps, capacity, np.concatenate(levels))

    # Inside

    def _start_background(self) -> list[Flight]:
        flights: list[Flight] = []
        for i, flow in enumerate(self.cluster.degrade.background):
            op = Operation(kind="p2p", source=flow.source, destination=flow.destination, size_bytes=1)
            for part in self.planner.plan(op):
                if part.shape is None:
                    continue
                shape = Shape(
                    links=part.shape.links,
                    loads=part.shape.loads,
                    starts=part.shape.starts,
                    weights=part.shape.weights,
                    caps=np.array([flow.bandwidth_bytes_per_s]),
                )
                flight = Flight(-1 - i, 0)
                self._launch(flight, (Part(0, shape, np.array([np.inf])),), background=True)
                flights.append(flight)
        return flights

    def _launch(self, flight: Flight, parts: tuple[Part, ...], *, background: bool = False) -> None:
        for index, part in enumerate(parts):
            shape = None
            if part.shape is not None and part.sizes.any() and len(part.shape.links):
                shape = self._sharing.intern(part.shape)
                self._check_alive(shape)
            kind = ManyBlock if shape is not None and shape.flows > 1 else SingleBlock
            block = kind(flight, index, part, shape)  # type: ignore[arg-type]
            flight.blocks.append(block)
            heapq.heappush(self._queue, (block.next_ps, flight.op_id, index, block.version, block))
        flight.open_blocks = len(flight.blocks)
        if not background:
            self._open[flight.op_id] = flight

    def _check_alive(self, shape: Shape) -> None:
        if shape.solo is None:
            capacity = self._sharing.capacity[shape.links]
            if not (capacity > 0).all():
                name = self.topology.links[int(shape.links[int(np.argmin(capacity))])].name
                raise OperationError(
                    f"link {name} has failed and there is no way around it ([degrade] links)"
                )
            shape.solo = capacity

    def _instant(self, now_ps: int, done: list[tuple[int, int]]) -> None:
        """Process every event at `now_ps`, then share the links anew once."""
        queue, sharing = self._queue, self._sharing
        changed: dict[bytes, Shape] = {}
        while queue and queue[0][0] == now_ps:
            _, _, _, version, block = heapq.heappop(queue)
            if version != block.version:
                continue
            self.events += 1
            block.version += 1
            if block.history:
                self._trim(block)
                if block.finish(now_ps):
                    sharing.remove(block)
                    self._end(block, now_ps, done)
                assert block.shape is not None
                changed[block.shape.key] = block.shape
            elif block.shape is None:
                self._end(block, now_ps, done)
            else:
                sharing.add(block)
                changed[block.shape.key] = block.shape
        if not changed:
            return
        for block in sharing.update(now_ps, [changed[key] for key in sorted(changed)]):
            self._trim(block)
            if block.next_ps < NEVER:
                heapq.heappush(queue, (block.next_ps, block.flight.op_id, block.index, block.version, block))

    def _trim(self, block: Block) -> None:
        # Background traffic never ends.
        if self._horizon_ps and (block.flight.op_id < 0 or not self.keep_history):
            block.trim(self._horizon_ps)

    def _end(self, block: Block, now_ps: int, done: list[tuple[int, int]]) -> None:
        block.end_ps = now_ps
        flight = block.flight
        flight.open_blocks -= 1
        if not flight.open_blocks:
            flight.end_ps = now_ps
            del self._open[flight.op_id]
            self._finished.append(flight)
            done.append((flight.op_id, now_ps))

    def _drop(self, flight: Flight) -> None:
        for block in flight.blocks:
            block.version += 1
