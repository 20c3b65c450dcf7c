"""Records collectives, messages, host copies and link use for timeline and report, as ends become final."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from netsim.errors import NetsimError
from netsim.network import Network
from netsim.operation import Choice, Operation
from netsim.sharing.link_use import LinkUse
from phantom.engine.matching import Communicator
from phantom.engine.operations import PendingOperation
from phantom.engine.statistics import Statistics
from phantom.timeline.collectives import Collective, CollectiveLog, Group
from phantom.timeline.links import LinkCurve, LinkRecord

FILE = "collectives.msgpack"


class Recorder:
    """Writes RUN_DIR/spool/collectives.msgpack.

    Operations that end before step `first` or start after step `last - 1` are left out, as the ranks leave
    out their kernels.
    """

    def __init__(
        self,
        folder: Path,
        *,
        steps: tuple[int, int],
        network: Network,
        statistics: Statistics,
        communicators: Callable[[], Mapping[str, Communicator]],
    ) -> None:
        self._first, self._last = steps
        self._network = network
        self._statistics = statistics
        self._communicators = communicators
        self._choices: dict[Operation, Choice | None] = {}
        self._log = CollectiveLog(folder / FILE)
        self._use = LinkUse(len(network.topology.links))
        network.keep_history = True

    def completed(self, operation: PendingOperation, end_ps: int) -> None:
        """An operation's end is final."""
        if not self._is_wanted(operation.start_ps, end_ps):
            return
        carried = operation.operation
        assert carried is not None
        comm = self._communicators().get(operation.comm)
        if comm is not None:
            self._log.group(Group(comm.key, comm.label, comm.ranks, comm.backend))
        choice = self._choice(carried)
        kind = carried.direction if operation.kind == "transfer" else operation.kind
        posts = [operation.posts[side] for side in sorted(operation.posts)]
        if operation.kind == "p2p":
            posts.sort(key=lambda post: post.rank != carried.source)  # the sender first
        flight = self._network.finished(operation.op_id)
        if flight is not None:
            self._use.add(flight)
        self._log.add(
            Collective(
                comm=operation.comm,
                seq=operation.seq,
                kind="send_recv" if kind == "p2p" else kind,
                size_bytes=carried.size_bytes,
                dtype=carried.dtype,
                members=tuple((post.rank, post.node_id) for post in posts),
                start_ps=operation.start_ps,
                end_ps=end_ps,
                algorithm=choice.algorithm if choice is not None else "",
                protocol=choice.protocol if choice is not None else "",
                channels=choice.channels if choice is not None else 0,
                bus_factor=choice.bus_factor if choice is not None else 1.0,
                root=carried.root,
                send_counts=carried.send_counts,
            )
        )

    def close(self) -> None:
        """Writes what the links carried and ends the file."""
        links = self._network.topology.links
        curves = tuple(
            LinkCurve(links[i].name, links[i].capacity_bytes_per_s, self._use.curve(i))
            for i in self._use.used().tolist()
        )
        self._log.links(LinkRecord(self._use.begin_ps, self._use.bin_ps, curves))
        self._log.close()
        if self._log.trouble is not None:
            self._statistics.warn(self._log.trouble)

    def _is_wanted(self, start_ps: int, end_ps: int) -> bool:
        counts, ends_ps = self._statistics.step_count_by_rank, self._statistics.step_end_ps
        if self._first > 0 and max(counts.values(), default=0) < self._first:
            return False
        told = min(counts.values()) if len(counts) >= len(self._statistics.ranks) else 0
        if self._first > 0 and told >= self._first and end_ps <= ends_ps[self._first - 1]:
            return False
        return told < self._last or start_ps <= ends_ps[self._last - 1]

    def _choice(self, operation: Operation) -> Choice | None:
        if operation not in self._choices:
            try:
                self._choices[operation] = self._network.describe(operation)
            except NetsimError:
                self._choices[operation] = None
        return self._choices[operation]
