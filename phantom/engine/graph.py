"""Nodes: points in virtual time that may not be known yet, resolved by counting dependencies.

A node's end is `max(floor, end(dep) + offset for each dep)`. Nodes that the network ends are *external*: they
hold one pending count of their own until `settle` is called.

An end is *final* once nothing can change it (`node.event is None` with `end_ps` set) or *speculative*: it
then belongs to an event beyond the commit horizon, can be undone with it, and becomes final when that event
is committed.
"""

from __future__ import annotations

from typing import Any, Protocol


class Owner(Protocol):
    """What holds a node in its table and wants to hear of its end (a rank's session)."""

    def resolved(self, node_id: int, end_ps: int) -> None:
        """Called once per owned node, when its end is final."""


class Event:
    """Something that happened at `time_ps` beyond the horizon: starts or network completions."""

    __slots__ = ("index", "resolved", "started", "time_ps")

    def __init__(self, index: int, time_ps: int) -> None:
        self.index = index
        self.time_ps = time_ps
        self.resolved: list[Node] = []
        self.started: Any = None


class Node:
    """One point in virtual time."""

    __slots__ = (
        "dependents",
        "deps",
        "end_ps",
        "event",
        "external",
        "floor_ps",
        "operation",
        "owners",
        "pending",
        "source",
        "waiters",
    )

    def __init__(self, *, floor_ps: int = 0, pending: int = 0, external: bool = False) -> None:
        self.floor_ps = floor_ps
        self.pending = pending
        self.external = external
        self.end_ps: int | None = None
        self.event: Event | None = None
        self.deps: list[tuple[Node, int]] = []
        self.dependents: list[Node] = []
        self.owners: list[tuple[Owner, int]] = []
        self.waiters: list[Any] = []
        # The operation that becomes ready with this node, and the one whose completion this node is.
        self.operation: Any = None
        self.source: Any = None

    def require(self, dep: Node, offset_ps: int) -> None:
        """Makes this node wait for `dep`: end >= end(dep) + offset_ps."""
        end_ps = dep.end_ps
        if end_ps is not None and dep.event is None:
            if end_ps + offset_ps > self.floor_ps:
                self.floor_ps = end_ps + offset_ps
            return
        self.deps.append((dep, offset_ps))
        dep.dependents.append(self)
        if end_ps is None:
            self.pending += 1


class Graph:
    """Resolves nodes as their dependencies end, speculatively or for good.

    `on_ready(operation, node)` is called when the node that gates an operation gets an end;
    `on_undone(operation)` when it loses it again; `on_final(node)` when an end with waiters or a source has
    become final.
    """

    def __init__(self, on_ready: Any, on_undone: Any, on_final: Any) -> None:
        self._on_ready = on_ready
        self._on_undone = on_undone
        self._on_final = on_final

    def settle(self, node: Node, end_ps: int, event: Event | None) -> None:
        """Gives an external node its end and resolves what follows from it."""
        node.pending -= 1
        node.end_ps = end_ps
        node.event = event
        if event is not None:
            event.resolved.append(node)
        self._spread(node)

    def try_resolve(self, node: Node) -> None:
        """Resolves `node` if nothing is pending any more, and what follows from it."""
        if node.pending == 0 and node.end_ps is None:
            self._evaluate(node)
            self._spread(node)

    def _evaluate(self, node: Node) -> None:
        end_ps = node.floor_ps
        event: Event | None = None
        for dep, offset_ps in node.deps:
            assert dep.end_ps is not None
            if dep.end_ps + offset_ps > end_ps:
                end_ps = dep.end_ps + offset_ps
            if dep.event is not None and (event is None or dep.event.index > event.index):
                event = dep.event
        node.end_ps = end_ps
        node.event = event
        if event is not None:
            event.resolved.append(node)

    def _spread(self, node: Node) -> None:
        stack = [node]
        while stack:
            node = stack.pop()
            if node.operation is not None:
                self._on_ready(node.operation, node)
            for dependent in node.dependents:
                dependent.pending -= 1
                if dependent.pending == 0:
                    self._evaluate(dependent)
                    stack.append(dependent)
            if node.event is None:
                self._finish(node)

    def _finish(self, node: Node) -> None:
        end_ps = node.end_ps
        assert end_ps is not None
        node.deps = []
        node.dependents = []
        for owner, node_id in node.owners:
            owner.resolved(node_id, end_ps)
        node.owners = []
        if node.waiters or node.source is not None:
            self._on_final(node)

    def commit(self, event: Event) -> None:
        """Makes all ends of `event` final."""
        # A first pass, so that nobody who is told of a final end meets a sibling that still looks
        # speculative.
        for node in event.resolved:
            node.event = None
        for node in event.resolved:
            self._finish(node)

    def undo(self, event: Event) -> None:
        """Takes back all ends of `event`. Later events must have been undone before."""
        for node in reversed(event.resolved):
            node.end_ps = None
            node.event = None
            if node.external:
                node.pending += 1
            for dependent in node.dependents:
                dependent.pending += 1
            if node.operation is not None:
                self._on_undone(node.operation)
        event.resolved.clear()
