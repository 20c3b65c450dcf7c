"""A rank whose own account lacks steps that it announced is named: its shares of time leave them out."""

from __future__ import annotations

from phantom.engine.statistics import Statistics
from phantom.results.summary import missing_steps
from phantom.wire.fields import Account, SettledStep


def test_a_rank_whose_account_lacks_a_step_is_named() -> None:
    statistics = Statistics(2)
    for rank in (0, 1):
        for index in (0, 1):
            statistics.step(rank, index, 100 * (index + 1))
    statistics.ranks[0].update(
        Account(steps=[SettledStep(0, 100, 50, 30, 20), SettledStep(1, 200, 50, 30, 20)])
    )
    statistics.ranks[1].update(Account(steps=[SettledStep(0, 100, 50, 30, 20)]))
    (text,) = missing_steps(statistics)
    assert text.startswith("rank 1 did not account for 1 of its 2 steps")
    statistics.ranks[1].update(Account(steps=[SettledStep(1, 200, 50, 30, 20)]))
    assert missing_steps(statistics) == []
