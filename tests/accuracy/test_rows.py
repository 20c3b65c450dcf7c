"""The committed choice of published rows, and how a step time follows from simulated steps."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from phantom.kernels.predict.estimate import Estimate
from tests.accuracy import runs
from tests.accuracy.rows import Row, kernel_fit_rows, rows
from tests.accuracy.runs import command, schedule, step_s, version
from tests.accuracy.table import percentile

ROWS = {row.id: row for row in rows()}


def test_enough_rows_of_each_large_source_are_chosen() -> None:
    counts = Counter(row.source for row in ROWS.values())
    assert counts["llm-foundry"] >= 20
    assert counts["Megatron A100 single-node"] >= 20
    assert counts["Megatron A100 multi-node"] >= 20


def test_nothing_is_fitted_on_rows_of_several_servers_and_rows_behind_constants_never_check() -> None:
    assert not [row.id for row in ROWS.values() if row.nodes > 1 and row.fitted]
    assert all(ROWS[identity].fitted for identity in kernel_fit_rows() if identity in ROWS)


def test_about_a_third_of_the_rows_of_one_server_fits() -> None:
    single = [row for row in ROWS.values() if row.nodes == 1]
    assert 0.25 < sum(row.fitted for row in single) / len(single) < 0.5


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
def test_a_row_is_a_job_of_its_size(row: Row) -> None:
    assert row.tensor * row.pipeline * row.data == row.ranks
    assert row.hidden % row.heads == 0
    assert row.vocabulary % row.tensor == 0
    assert row.layers >= row.pipeline
    assert 0 < row.step_s < 3600


def test_step_time_is_extrapolated_along_micro_batches() -> None:
    row = next(
        row
        for row in ROWS.values()
        if row.pipeline == 1 and row.micro_batches > 3 and not row.per_micro_batch
    )
    row = replace(row, micro_batches=10)
    assert schedule(row) == [2, 2, 3]
    assert step_s(row, [9.0, 2.5, 3.5]) == pytest.approx(2.5 + 8 * 1.0)
    assert step_s(replace(row, micro_batches=3), [9.0, 3.5]) == 3.5
    assert step_s(replace(row, per_micro_batch=True), [9.0, 2.5, 3.5]) == 1.0


def test_deep_accumulation_of_a_pipeline_starts_at_twice_its_depth() -> None:
    row = next(row for row in ROWS.values() if row.pipeline > 1)
    assert schedule(replace(row, pipeline=4, micro_batches=100)) == [4, 8, 12]
    assert step_s(replace(row, pipeline=4, micro_batches=100), [1.0, 11.0, 15.0]) == pytest.approx(11 + 92)
    assert schedule(replace(row, pipeline=4, micro_batches=32)) == [32, 32]


def test_the_command_names_the_published_job() -> None:
    row = ROWS["mm0011"]
    words = command(row, Path("out"))
    assert words[words.index("-N") + 1] == "8"
    assert words[words.index("--pipeline") + 1] == "2"
    assert words[words.index("--micro-batches") + 1 :][:2] == ["4", "4"]


def test_a_result_is_of_another_version_when_its_command_or_cluster_changes(tmp_path: Path) -> None:
    row = ROWS["ms0387"]
    slower = tmp_path / "slower.toml"
    slower.write_text(Path(row.cluster).read_text().replace("op_s = ", "op_s = 1"))
    others = [replace(row, recompute="none"), replace(row, cluster=str(slower))]
    assert len({version(r) for r in [row, *others]}) == 3


def test_a_result_is_of_another_version_when_a_rule_prices_its_kernels_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = version(ROWS["ms0387"])
    runs._prices.cache_clear()
    monkeypatch.setattr(
        "phantom.kernels.predict.rules.compute_rules.gemm", lambda kernel, context: Estimate(1.0)
    )
    monkeypatch.setattr("phantom.kernels.predict.rule_context.memory_s", lambda *_, **__: 1.0)
    try:
        assert version(ROWS["ms0387"]) != before
    finally:
        runs._prices.cache_clear()


@pytest.mark.parametrize(("share", "expected"), [(0.9, 9), (0.5, 5), (1.0, 10)])
def test_percentile_is_the_smallest_value_that_covers_the_share(share: float, expected: int) -> None:
    assert percentile([10, 9, 8, 7, 6, 5, 4, 3, 2, 1], share) == expected
