"""What the engine asks the network to carry: a collective, a message or a host copy."""

from __future__ import annotations

from dataclasses import dataclass

COLLECTIVE_KINDS = (
    "all_reduce",
    "broadcast",
    "reduce",
    "all_gather",
    "reduce_scatter",
    "all_to_all",
    "gather",
    "scatter",
    "barrier",
)
KINDS = (*COLLECTIVE_KINDS, "p2p", "transfer")


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
    if kind == "all_reduce":
        return 2.0 * (ranks - 1) / ranks
    if kind in ("all_gather", "reduce_scatter", "all_to_all", "gather", "scatter"):
        return (ranks - 1) / ranks
    return 1.0


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
