"""What the engine asks the network to carry: a collective, a message or a host copy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class CollectiveTraits:
    """What tells one kind of collective from another.

    `ring_rounds`: times that a piece goes round NCCL's ring (2 for all_reduce: once to reduce, once to
    gather; 0 where the data pass along a chain from or to a root). `scatters`: a rank ends with, or starts
    from, one piece of n, so bus bandwidth counts (n-1)/n of the size. `reduces`: adds up. `rooted`: one rank
    is special. `in_place`: PyTorch gives NCCL one buffer, and NCCL with one rank then launches nothing
    (NVIDIA/nccl `src/enqueue.cc`, taskAppend and ncclLaunchOneRank). `grouped`: made of send/recv pairs.
    """

    ring_rounds: int = 0
    scatters: bool = False
    reduces: bool = False
    rooted: bool = False
    in_place: bool = False
    grouped: bool = False

    def ring_steps(self, ranks: int) -> int:
        """Sequential steps of NCCL's ring or chain of `ranks`."""
        return self.ring_rounds * (ranks - 1) if self.ring_rounds else ranks


COLLECTIVES: Mapping[str, CollectiveTraits] = {
    "all_reduce": CollectiveTraits(ring_rounds=2, reduces=True, in_place=True),
    "broadcast": CollectiveTraits(rooted=True, in_place=True),
    "reduce": CollectiveTraits(reduces=True, rooted=True, in_place=True),
    "all_gather": CollectiveTraits(ring_rounds=1, scatters=True),
    "reduce_scatter": CollectiveTraits(ring_rounds=1, scatters=True, reduces=True),
    "all_to_all": CollectiveTraits(scatters=True, grouped=True),
    "gather": CollectiveTraits(scatters=True, rooted=True, grouped=True),
    "scatter": CollectiveTraits(scatters=True, rooted=True, grouped=True),
    "barrier": CollectiveTraits(in_place=True),
}
COLLECTIVE_KINDS = tuple(COLLECTIVES)


@dataclass(frozen=True, kw_only=True)
class Operation:
    """One collective, point-to-point message ("p2p") or host copy ("transfer").

    `ranks` are global ranks in group order. `size_bytes` is NCCL's message size: the buffer for all_reduce,
    broadcast and reduce; the full (larger) buffer for all_gather and reduce_scatter; one rank's send buffer
    for all_to_all (even_size_bytes() of an uneven one); the piece of one rank times the number of ranks for
    gather and scatter; the message for p2p and transfer. `root` is a group rank. `send_counts[i][j]` are
    the bytes that group rank i sends to group rank j (all_to_all only; None means balanced). `source` and
    `destination` are global ranks (p2p). `direction` is "h2d" or "d2h" (transfer, of the one rank in
    `ranks`). `backend` is "nccl" or "gloo" (a collective among the hosts' memories).
    """

    kind: str
    ranks: tuple[int, ...] = ()
    size_bytes: int = 0
    dtype: str = "float32"
    root: int = -1
    send_counts: tuple[tuple[int, ...], ...] | None = None
    source: int = -1
    destination: int = -1
    direction: str = ""
    pinned: bool = True
    backend: str = "nccl"


@dataclass(frozen=True, kw_only=True)
class Choice:
    """How an operation would be carried out: NCCL's algorithm, protocol and channels, for reports.

    `bus_factor` turns size / time into bus bandwidth (nccl-tests, doc/PERFORMANCE.md).
    `estimate_s` is the time on an idle network.
    """

    algorithm: str
    protocol: str
    channels: int
    threads: int
    bus_factor: float
    estimate_s: float


def bus_factor(kind: str, ranks: int) -> float:
    """Factor from algorithm bandwidth to bus bandwidth of nccl-tests (doc/PERFORMANCE.md of nccl-tests)."""
    if ranks < 2:
        return 1.0
    traits = COLLECTIVES.get(kind)
    if traits is not None and traits.ring_rounds == 2:
        return 2.0 * (ranks - 1) / ranks
    return (ranks - 1) / ranks if traits is not None and traits.scatters else 1.0


def even_size_bytes(send_counts: tuple[tuple[int, ...], ...]) -> int:
    """Size of the even all_to_all in which a rank exchanges as much with the others as the busiest does here.

    The busiest rank's bytes to the others, or from them, times n/(n-1): bus bandwidth of that size
    (nccl-tests: size / time x (n-1)/n) is then what really crosses the busiest rank's links.
    """
    n = len(send_counts)
    if n < 2:
        return sum(map(sum, send_counts))
    sent = max(sum(row) - row[i] for i, row in enumerate(send_counts))
    received = max(sum(column) - column[i] for i, column in enumerate(zip(*send_counts)))
    return max(sent, received) * n // (n - 1)
