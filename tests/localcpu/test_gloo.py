"""The Gloo sweep of this machine, its fit, and the cluster file made of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from netsim.cluster import load_cluster
from netsim.network import Network
from netsim.operation import Operation
from phantom.localcpu.description import cluster_text
from phantom.localcpu.gloo import GlooFit, SweepFailed, fit_sweep, run_sweep

SIZES = (4 << 10, 64 << 10, 1 << 20, 8 << 20)


def rows(kind: str, latency_s: float, rate: float) -> list[dict[str, object]]:
    return [{"kind": kind, "bytes": size, "samples_s": [latency_s + size / rate] * 5} for size in SIZES]


def test_a_fit_finds_latency_and_rate() -> None:
    fit = fit_sweep({"rows": rows("all_reduce", 120e-6, 1.5e9)})["all_reduce"]
    assert fit.latency_s == pytest.approx(120e-6)
    assert fit.rate_bytes_per_s == pytest.approx(1.5e9)
    assert fit.error < 1e-6


def test_disturbed_repetitions_do_not_count() -> None:
    measured = rows("p2p", 50e-6, 3e9)
    for row in measured:
        row["samples_s"] = [*row["samples_s"], 1.0, 1.0]  # type: ignore[misc]  # another process had the core
    assert fit_sweep({"rows": measured})["p2p"].latency_s == pytest.approx(50e-6)


def test_calls_that_wait_for_a_core_count_with_their_share() -> None:
    measured = rows("all_gather", 300e-6, 3e9)
    for row in measured:
        fast = row["samples_s"]
        assert isinstance(fast, list)
        row["samples_s"] = [*fast, *(sample + 4e-3 for sample in fast)]
    fit = fit_sweep({"rows": measured})["all_gather"]
    assert fit.latency_s == pytest.approx(2300e-6)
    assert fit.rate_bytes_per_s == pytest.approx(3e9)


@pytest.mark.parametrize("kind", ["all_reduce", "all_gather", "reduce_scatter", "broadcast", "p2p"])
@pytest.mark.parametrize("backend", ["gloo", "nccl"])
def test_the_cluster_takes_the_fitted_times(tmp_path: Path, kind: str, backend: str) -> None:
    # Also what the script asks of nccl, since it thinks the device is a GPU.
    rates = {"all_reduce": 0.8e9, "all_gather": 2e9, "reduce_scatter": 0.9e9, "broadcast": 2.5e9, "p2p": 4e9}
    fits = {
        name: GlooFit(kind=name, latency_s=(20 + 10 * number) * 1e-6, rate_bytes_per_s=rate, error=0.0)
        for number, (name, rate) in enumerate(rates.items())
    }
    path = tmp_path / "cpu.toml"
    path.write_text(cluster_text(fits, ranks=2, name="this", device="CPU"))
    network = Network(load_cluster(str(path)), nodes=1, gpus_per_node=2, environment={}, seed=0)
    operation = Operation(
        kind=kind, ranks=(0, 1), size_bytes=3 << 20, root=0, source=0, destination=1, backend=backend
    )
    network.start(1, operation, 0)
    ((_, end_ps),) = network.advance(1 << 62)
    expected_s = fits[kind].latency_s + (3 << 20) / fits[kind].rate_bytes_per_s
    assert end_ps * 1e-12 == pytest.approx(expected_s, rel=1e-4)


def test_a_real_sweep() -> None:
    sweep = run_sweep(ranks=2, sizes=(4 << 10, 4 << 20), repetitions=3)
    assert sweep["world_size"] == 2
    fits = fit_sweep(sweep)
    assert set(fits) == {"all_reduce", "all_gather", "reduce_scatter", "broadcast", "p2p"}
    for fit in fits.values():
        assert 1e-6 < fit.latency_s < 1.0
        assert fit.rate_bytes_per_s > 1e6  # under load two sizes may not differ: no upper limit


def test_ranks_that_a_message_does_not_concern_take_no_part() -> None:
    sweep = run_sweep(ranks=3, sizes=(4 << 10,), repetitions=3, timeout_s=60.0)
    assert sweep["world_size"] == 3
    (message,) = (row["samples_s"] for row in sweep["rows"] if row["kind"] == "p2p")
    assert all(0 < sample < 1 for sample in message)


def test_a_sweep_that_takes_too_long_ends_with_a_reason() -> None:
    with pytest.raises(SweepFailed, match="took longer"):
        run_sweep(ranks=2, timeout_s=0.2)
