"""What one fused attention call computes."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass


@dataclass(frozen=True)
class AttentionShape:
    """One attention call: *batch* sequences, query and key/value heads, lengths and head sizes (elements).

    *window*: keys before and after a query's own position that it sees, None on a side without a limit.
    *sequences*: (query length, key length) of every packed sequence, where they are known; *batch*,
    *q_len* and *kv_len* are then their count and their mean lengths.
    """

    batch: int
    heads: int
    kv_heads: int
    q_len: int
    kv_len: int
    head_dim: int
    v_head_dim: int
    causal: bool
    dropout: bool
    dtype: str
    backward: bool
    window: tuple[int | None, int | None] | None = None
    sequences: tuple[tuple[int, int], ...] | None = None

    @property
    def lengths(self) -> dict[tuple[int, int], int]:
        """How many sequences there are of each (query length, key length)."""
        if self.sequences is not None:
            return dict(Counter(self.sequences))
        return {(self.q_len, self.kv_len): self.batch}

    @property
    def q_tokens(self) -> int:
        """Queries of all sequences."""
        return sum(q * count for (q, _), count in self.lengths.items())

    @property
    def kv_tokens(self) -> int:
        """Keys of all sequences."""
        return sum(kv * count for (_, kv), count in self.lengths.items())

    @property
    def flops(self) -> float:
        """Multiply-adds counted as two.

        4 q kv d forward, 2.5 times that backward; half where causal (FlashAttention-2's count).
        """
        pairs = sum(q * kv * self._visible(kv) * count for (q, kv), count in self.lengths.items())
        full = 2.0 * self.heads * pairs * (self.head_dim + self.v_head_dim)
        return full * (2.5 if self.backward else 1.0)

    def _visible(self, kv_len: int) -> float:
        """Share of the score matrix that is not masked away whole."""
        share = 0.5 if self.causal else 1.0
        if self.window is None:
            return share
        before, after = (kv_len if side is None else side for side in self.window)
        return min(share, (before + after + 1) / kv_len)
