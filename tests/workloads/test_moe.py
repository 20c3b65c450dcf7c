"""Expert parallelism under `--moe-routing`: sizes, agreement and step time follow the experts' shares."""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import simulation

from phantom.timeline.recording import load

HERE = Path(__file__).parent
TOKENS, DIM, EXPERTS, TOP_K, LAYERS, RANKS = 8192, 1024, 8, 2, 2, 4


@dataclass(frozen=True)
class Result:
    summary: dict[str, Any]
    counts: dict[tuple[int, int, int], list[int]]
    """By (rank, step, layer)."""
    sent: Counter[tuple[int, int]]
    """Bytes by (from, to) of the uneven all_to_all of one layer and step: forward out."""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Runs moe_ep.py with a routing, once per routing."""
    done: dict[str, Result] = {}

    def result(routing: str) -> Result:
        if routing not in done:
            done[routing] = simulate(tmp_path_factory.mktemp("moe"), routing)
        return done[routing]

    return result


def simulate(folder: Path, routing: str) -> Result:
    out = folder / "run"
    options = ("-q", "--moe-routing", routing)
    done = simulation.simulate(out, str(HERE / "moe_ep.py"), gpus=RANKS, options=options)
    counts = {}
    for rank, log in enumerate(done.logs):
        for found in re.finditer(r"step (\d) layer (\d) counts (\[.*\])", log):
            counts[rank, int(found[1]), int(found[2])] = json.loads(found[3])
    sent: Counter[tuple[int, int]] = Counter()
    uneven = [each for each in load(out).collectives if each.kind == "all_to_all" and each.send_counts]
    for index, row in enumerate(uneven[0].send_counts or ()):
        for to, size in enumerate(row):
            sent[index, to] = size
    return Result(done.summary, counts, sent)


def share_of_rank(counts: list[int], rank: int) -> int:
    local = EXPERTS // RANKS
    return sum(counts[rank * local : (rank + 1) * local])


@pytest.mark.parametrize("routing", ["balanced", "zipf:1"])
def test_ranks_that_route_as_many_tokens_agree_and_counts_add_up(run: Any, routing: str) -> None:
    counts = run(routing).counts
    assert len(counts) == RANKS * 3 * LAYERS
    for (_, step, layer), row in counts.items():
        assert sum(row) == TOKENS * TOP_K
        assert row == counts[0, 0, layer], f"step {step}"


def test_balanced_is_balanced(run: Any) -> None:
    for row in run("balanced").counts.values():
        assert max(row) - min(row) <= 1


def test_zipf_shares_and_the_layers_busy_experts_differ(run: Any) -> None:
    counts = run("zipf:1").counts
    weights = [1 / rank for rank in range(1, EXPERTS + 1)]
    expected = [weight / sum(weights) * TOKENS * TOP_K for weight in weights]
    for layer in range(LAYERS):
        found = sorted(counts[0, 0, layer], reverse=True)
        assert all(abs(a - b) <= 1 for a, b in zip(found, expected, strict=True))
    assert counts[0, 0, 0] != counts[0, 0, 1]


@pytest.mark.parametrize("routing", ["balanced", "zipf:1"])
def test_all_to_all_carries_what_the_router_chose(run: Any, routing: str) -> None:
    result = run(routing)
    counts = result.counts[0, 0, 0]
    assert len(result.sent) == RANKS * RANKS
    for (_, to), size in result.sent.items():
        assert size == share_of_rank(counts, to) * DIM * 2  # bf16


def test_the_busiest_experts_make_the_step_longer(run: Any) -> None:
    balanced, zipf = run("balanced"), run("zipf:1")
    slower = zipf.summary["step_virtual_s"]["median"] / balanced.summary["step_virtual_s"]["median"]
    # The matrix products of the busiest rank set the pace: its rows over those of an even share.
    busiest = max(
        share_of_rank(zipf.counts[0, 0, layer], rank) for layer in range(LAYERS) for rank in range(RANKS)
    )
    even = TOKENS * TOP_K / RANKS
    assert 1.05 < slower <= busiest / even * 1.02
    assert zipf.summary["moe_routing"] == "zipf:1"
    assert zipf.summary["moe_routers"][0]["busiest_share"] == pytest.approx(
        max(zipf.counts[0, 0, 0]) / (TOKENS * TOP_K)
    )
    # The rank with the busiest experts computes longest; the others wait for it.
    compute = [rank["compute_s"] for rank in zipf.summary["ranks"]]
    rows = [
        sum(share_of_rank(zipf.counts[0, 0, layer], rank) for layer in range(LAYERS)) for rank in range(RANKS)
    ]
    assert compute.index(max(compute)) == rows.index(max(rows))
    assert not zipf.summary["unknown_value_reads"] or all(
        "moe_ep.py" not in read["where"] for read in zipf.summary["unknown_value_reads"]
    )
