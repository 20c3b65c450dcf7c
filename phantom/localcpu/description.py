"""The cluster file of this machine: `local-cpu` with the measured constants."""

from __future__ import annotations

from collections.abc import Mapping

from phantom.localcpu.gloo import GlooFit

BASE = "local-cpu"
_KEYS = {
    "all_reduce": "gloo",
    "all_gather": "gloo_all_gather",
    "reduce_scatter": "gloo_reduce_scatter",
    "broadcast": "gloo_broadcast",
    "p2p": "gloo_p2p",
}
"""Kind of operation to its table in [nccl.timing]."""


def steps_and_factor(kind: str, ranks: int) -> tuple[int, float]:
    """How often a message passes on, and how many times its size (netsim/nccl/messages.py, `gloo`)."""
    if kind == "p2p":
        return 1, 1.0
    if kind == "all_reduce":
        return 2 * (ranks - 1), 2.0 * (ranks - 1) / ranks
    return max(ranks - 1, 1), 1.0


def cluster_text(fits: Mapping[str, GlooFit], *, ranks: int, name: str, device: str) -> str:
    """Returns the cluster file (TOML): Gloo takes the fitted times."""
    # The fastest kind runs at the full modelled bandwidth, the others at their share of it.
    rates = {kind: fit.rate_bytes_per_s * steps_and_factor(kind, ranks)[1] for kind, fit in fits.items()}
    memory = max(rates.values())
    lines = [
        f"# {device}: measured by `phantom cluster measure` with {ranks} ranks of one thread.",
        f'name = "{name}"',
        f'base = "{BASE}"',
        f'description = "{device} as the device, Gloo over loopback"',
        "",
        "[node.pcie]",
        f"p2p_bandwidth_bytes_per_s = {min(max(memory, 1e8), 1e13):.6g}",
        "",
        "[nccl.timing]",
    ]
    for kind, fit in sorted(fits.items()):
        steps, _ = steps_and_factor(kind, ranks)
        hop_us = fit.latency_s / steps * 1e6
        efficiency = min(max(rates[kind] / memory, 0.01), 1.5)
        lines.append(
            f"{_KEYS[kind]} = {{ base_us = 0, intra_us = {hop_us:.6g}, efficiency = {efficiency:.6g} }}"
            f"  # fit off by {fit.error:.0%}"
        )
    return "\n".join(lines) + "\n"


def default_device() -> str:
    """The CPU's name, for the file's comment."""
    from phantom.kernels.measure.local_device import cpu_name

    return cpu_name().replace('"', "'")
