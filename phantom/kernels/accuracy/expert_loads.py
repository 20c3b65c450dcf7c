"""Loads of experts as aiconfigurator's benchmark makes them: even, or drawn from a power law.

Of several ranks it times the one with the greatest load (collector/helper.py, power_law_logits_v3).
"""

from __future__ import annotations

import random
from collections.abc import Sequence

_DRAWS = 8  # the benchmark's own five are not known


def expert_loads(
    tokens: int, *, topk: int, experts: int, ranks: int, kind: str
) -> Sequence[tuple[float, ...]]:
    """Return the rows of each expert of the fullest rank, for *kind* ``balanced`` or
    ``power_law_<exponent>``.

    Random loads are drawn several times, always the same: the mean of their prices is a prediction.
    """
    here = experts // ranks
    if kind == "balanced":
        return [(tokens * topk / experts,) * here]
    exponent = float(kind.rpartition("_")[2])
    source = random.Random(f"{tokens},{topk},{experts},{ranks},{exponent}")
    return [_fullest(_draw(source, tokens, topk, experts, exponent), here) for _ in range(_DRAWS)]


def _draw(source: random.Random, tokens: int, topk: int, experts: int, exponent: float) -> list[float]:
    low, high = (1.0, 0.8 * tokens) if tokens * topk > experts else (0.01, 2.0)
    power = 1.0 - exponent
    drawn = [
        (low**power + (high**power - low**power) * source.random()) ** (1.0 / power) for _ in range(experts)
    ]
    scale = tokens * topk / sum(drawn)
    loads = [float(round(value * scale)) for value in drawn]
    # An expert takes a token at most once; what is over goes to the others alike.
    over = sum(max(load - tokens, 0.0) for load in loads)
    loads = [min(load, float(tokens)) for load in loads]
    while over > 0.5:
        room = [i for i, load in enumerate(loads) if load < tokens]
        if not room:
            break
        share = over / len(room)
        for i in room:
            added = min(share, tokens - loads[i])
            loads[i] += added
            over -= added
    return loads


def _fullest(loads: Sequence[float], here: int) -> tuple[float, ...]:
    return max((tuple(loads[i : i + here]) for i in range(0, len(loads), here)), key=sum)
