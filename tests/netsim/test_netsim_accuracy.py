"""Published logs: the targets that the presets must keep."""

from __future__ import annotations

import pytest

from netsim.accuracy import Summary, a100_fit, a100_held_out, a100_leave_one_out
from netsim.calibrate.fit import errors
from netsim.calibrate.sources import SOURCES, Source, cluster_of, rows_of_source
from netsim.cluster import load_cluster


def test_a100_table_on_sizes_that_were_not_fitted() -> None:
    # 2 and 8 GPUs are another source's check of the times inside a node (accuracy-network.md).
    summary = Summary.of([e for m, e in a100_held_out() if m.nodes > 1])
    assert summary.rows >= 30
    assert summary.median <= 0.045
    assert summary.p90 <= 0.15


@pytest.mark.parametrize("world_size", [2, 8, 16, 32, 128])
def test_a100_world_size_left_out(world_size: int) -> None:
    assert Summary.of(a100_leave_one_out(world_size)).median <= 0.15


def test_preset_holds_the_fit() -> None:
    fitted, preset = a100_fit().cluster, load_cluster("a100-azure-nd")
    for key in ("ring_ll", "ring_simple", "tree_ll", "tree_ll128"):
        assert preset.nccl.timing[key].base_us == pytest.approx(fitted.nccl.timing[key].base_us, rel=0.02)
        assert preset.nccl.timing[key].efficiency == pytest.approx(
            fitted.nccl.timing[key].efficiency, rel=0.02
        )


@pytest.mark.parametrize("source", SOURCES, ids=lambda s: s.name)
def test_source_medians(source: Source) -> None:
    _, rows = rows_of_source(source)
    assert rows
    median = Summary.of(errors(cluster_of(source), rows)).median
    assert median <= 0.20 or source.note
