"""What the routers of mixtures of experts chose, over all ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from phantom.engine.statistics import RankReport


def moe_routers(reports: Sequence[RankReport]) -> list[dict[str, Any]]:
    """One entry per layer, number of experts and choices per token.

    `calls` and `tokens` are sums over ranks, recomputed ones included; `busiest_share` is the mean share of
    a call's choices that its busiest expert got.
    """
    totals: dict[tuple[int, int, int], list[int]] = {}
    for report in reports:
        for router in report.latest.moe_routers:
            row = totals.setdefault((router.layer, router.experts, router.choices), [0, 0, 0])
            for column, value in enumerate((router.calls, router.tokens, router.busiest)):
                row[column] += value
    return [
        {
            "layer": layer,
            "experts": experts,
            "choices": choices,
            "calls": calls,
            "tokens": tokens,
            "busiest_share": busiest / (tokens * choices),
        }
        for (layer, experts, choices), (calls, tokens, busiest) in sorted(totals.items())
    ]
