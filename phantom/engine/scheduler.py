"""Drives the network: starts operations, takes completions, runs ahead of the horizon and rolls back."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable
from typing import Protocol

from netsim.operation import Operation
from phantom.engine.clocks import INFINITY_PS
from phantom.engine.errors import beyond_time
from phantom.engine.graph import Event, Graph, Node
from phantom.engine.operations import PendingOperation
from phantom.wire.limits import MAX_PS


class Network(Protocol):
    """What the engine needs of netsim.Network."""

    def start(self, op_id: int, op: Operation, start_ps: int) -> None: ...
    def next_event_ps(self) -> int | None: ...
    def advance(self, to_ps: int) -> list[tuple[int, int]]: ...
    def rollback(self, to_ps: int) -> None: ...
    def commit(self, to_ps: int) -> None: ...


class Scheduler:
    """Events in time order: network completions first, then starts, at one instant.

    Events at or before `committed_ps` are final. Those in the log lie beyond the horizon, were applied on
    what was known, and are undone when an operation turns out to start before the last of them.
    """

    def __init__(
        self, network: Network, *, on_final: Callable[[Node], None], speculation_events: int
    ) -> None:
        self.graph = Graph(self._on_ready, self._on_undone, on_final)
        self._network = network
        self._limit = speculation_events
        self._starts: list[tuple[int, int, int, PendingOperation]] = []
        self._running: dict[int, PendingOperation] = {}
        self._log: deque[Event] = deque()
        self._frontier_ps = 0
        self._network_committed_ps = 0
        self._events_made = 0
        self.committed_ps = 0
        self.rollbacks = 0
        self.undone_events = 0
        self.events = 0

    def _on_ready(self, operation: PendingOperation, node: Node) -> None:
        start_ps = node.end_ps
        assert start_ps is not None
        if start_ps > MAX_PS:
            raise beyond_time(operation.posts[min(operation.posts)].rank, start_ps)
        if start_ps < self.committed_ps:
            # Only after a silent clock was taken out of the horizon; counted where that happens.
            start_ps = self.committed_ps
        operation.start_ps = start_ps
        heapq.heappush(self._starts, (start_ps, operation.op_id, operation.version, operation))

    def _on_undone(self, operation: PendingOperation) -> None:
        operation.version += 1

    def _next_start_ps(self) -> int:
        starts = self._starts
        while starts and starts[0][2] != starts[0][3].version:
            heapq.heappop(starts)
        return starts[0][0] if starts else INFINITY_PS

    def next_event_ps(self) -> int:
        """Time of the next event that is not final yet; INFINITY_PS if nothing is going on.

        Rolls the network back first if an operation has turned out to start in its past.
        """
        start_ps = self._next_start_ps()
        if start_ps < self._frontier_ps:
            self._rollback(start_ps)
            start_ps = self._next_start_ps()
        if self._log:
            return self._log[0].time_ps
        network_ps = self._network.next_event_ps()
        return start_ps if network_ps is None or start_ps < network_ps else network_ps

    def commit_next(self) -> None:
        """Makes the next event final. Call only with `next_event_ps()` below the horizon."""
        self.events += 1
        if self._log:
            event = self._log.popleft()
            self.committed_ps = event.time_ps
            self.graph.commit(event)
            return
        self.committed_ps = self._apply(None)

    def run_ahead(self, max_events: int) -> int:
        """Applies up to `max_events` events beyond the horizon; returns how many."""
        self.next_event_ps()
        done = 0
        while done < max_events and len(self._log) < self._limit:
            network_ps = self._network.next_event_ps()
            time_ps = min(self._next_start_ps(), INFINITY_PS if network_ps is None else network_ps)
            if time_ps == INFINITY_PS:
                break
            self._events_made += 1
            event = Event(self._events_made, time_ps)
            self._log.append(event)
            self._apply(event)
            done += 1
        return done

    def release_history(self) -> None:
        """Lets the network forget what lies before the last final event."""
        if self.committed_ps > self._network_committed_ps:
            self._network_committed_ps = self.committed_ps
            self._network.commit(self.committed_ps)

    def idle(self) -> bool:
        """True if no operation is under way or about to start."""
        return not self._running and self._next_start_ps() == INFINITY_PS and not self._log

    def _apply(self, event: Event | None) -> int:
        start_ps = self._next_start_ps()
        network_ps = self._network.next_event_ps()
        if network_ps is not None and network_ps <= start_ps:
            self._frontier_ps = network_ps
            for op_id, end_ps in self._network.advance(network_ps):
                self.graph.settle(self._running.pop(op_id).done, end_ps, event)
            return network_ps
        self._frontier_ps = start_ps
        started: list[PendingOperation] = []
        # Operations that become ready at this very instant while we start others form an event of their own.
        while self._starts and self._next_start_ps() == start_ps:
            operation = heapq.heappop(self._starts)[3]
            started.append(operation)
            assert operation.operation is not None
            self._running[operation.op_id] = operation
            self._network.start(operation.op_id, operation.operation, start_ps)
        if event is not None:
            event.started = started
        return start_ps

    def _rollback(self, to_ps: int) -> None:
        self.rollbacks += 1
        while self._log and self._log[-1].time_ps > to_ps:
            event = self._log.pop()
            self.undone_events += 1
            for node in event.resolved:
                if node.external:
                    self._running[node.source.op_id] = node.source
            self.graph.undo(event)
            for operation in event.started or ():
                del self._running[operation.op_id]
                heapq.heappush(
                    self._starts, (operation.start_ps, operation.op_id, operation.version, operation)
                )
        # Back to the last event that stands, not to `to_ps`: the next record may bring an even earlier start.
        self._frontier_ps = self._log[-1].time_ps if self._log else self.committed_ps
        self._network.rollback(self._frontier_ps)
