"""What the engine has to know of each kind of collective, in one table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from phantom.engine import values
from phantom.wire.fields import CollectiveKind, Payload, ReduceOp

Results = list[Payload | None]


@dataclass(frozen=True, kw_only=True)
class Contribution:
    """The values that the members bring, in group order; None where nobody knows one."""

    payloads: Sequence[Payload | None]
    root: int = -1
    op: ReduceOp = ReduceOp.sum
    factors: Sequence[float | None] = ()
    in_splits: Sequence[Sequence[int] | None] = ()

    def known(self) -> list[Payload] | None:
        """All payloads, None if one is unknown."""
        known = [payload for payload in self.payloads if payload is not None]
        return known if len(known) == len(self.payloads) else None

    def total(self) -> Payload | None:
        """The reduction of all, None if that is unknown."""
        known = self.known()
        return None if known is None else values.reduce(known, self.op, self.factors)

    def whole(self) -> Payload | None:
        """All one after the other, None if that is unknown."""
        known = self.known()
        return None if known is None else values.concatenate(known)

    def for_all(self, payload: Payload | None) -> Results:
        """The same result for every member."""
        return [payload] * len(self.payloads)

    def for_root(self, payload: Payload | None) -> Results:
        """A result for the root alone."""
        return [payload if index == self.root else None for index in range(len(self.payloads))]

    def in_pieces(self, payload: Payload | None) -> Results:
        """Equal pieces, one for each member."""
        if payload is None:
            return self.for_all(None)
        ranks = len(self.payloads)
        piece = payload.numel // ranks
        return [values.part(payload, index * piece, piece) for index in range(ranks)]


def _exchanged(given: Contribution) -> Results:
    return values.exchange(given.payloads, given.in_splits)


@dataclass(frozen=True, kw_only=True)
class Traits:
    """One kind of collective.

    `agree`: fields of a Post that all members must have in common. `rooted`: a member has a role of its own.
    `sized`: it moves bytes of its own. `splits`: members may say how much goes to whom. `combine`: the result
    for each member, in group order.
    """

    agree: tuple[str, ...] = field(default=("kind", "dtype", "size_bytes", "root", "reduction"))
    rooted: bool = False
    sized: bool = True
    splits: bool = False
    combine: Callable[[Contribution], Results]


TRAITS: dict[str, Traits] = {
    CollectiveKind.all_reduce: Traits(combine=lambda given: given.for_all(given.total())),
    CollectiveKind.broadcast: Traits(
        rooted=True, combine=lambda given: given.for_all(given.payloads[given.root])
    ),
    CollectiveKind.reduce: Traits(rooted=True, combine=lambda given: given.for_root(given.total())),
    CollectiveKind.all_gather: Traits(combine=lambda given: given.for_all(given.whole())),
    CollectiveKind.reduce_scatter: Traits(combine=lambda given: given.in_pieces(given.total())),
    # Send buffers may differ; splits are compared pairwise.
    CollectiveKind.all_to_all: Traits(agree=("kind", "dtype"), splits=True, combine=_exchanged),
    CollectiveKind.gather: Traits(rooted=True, combine=lambda given: given.for_root(given.whole())),
    CollectiveKind.scatter: Traits(
        rooted=True, combine=lambda given: given.in_pieces(given.payloads[given.root])
    ),
    CollectiveKind.barrier: Traits(agree=("kind",), sized=False, combine=lambda given: given.for_all(None)),
}
