"""Predicted against published collective times: tables by world size and size class, and by source.

python -m netsim.accuracy [--refit]

`data/nccl_all_reduce_a100.csv` is fitted on every second size and stated on the others, and leaving out one
world size at a time. `data/nccl.csv` is predicted by the presets, which were fitted on every second row of
a source where `SOURCES` says so.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path

import numpy as np

from netsim.calibrate.fit import Fit, errors, fit, timing_lines
from netsim.calibrate.judge import checks, summarise
from netsim.calibrate.measurements import Measurement, a100_all_reduce
from netsim.calibrate.sources import (
    SIZE_RANGES,
    SOURCES,
    cluster_of,
    rows_of_source,
)
from netsim.calibrate.within_node import held_out_errors, rows_by_set, within_node_rows
from netsim.cluster import load_cluster
from netsim.cluster.spec import ClusterSpec, ProtocolTiming
from netsim.cluster.timing_defaults import default_timing, nccl_constants_as_timing

SIZE_CLASSES = (
    (0, 1 << 16, "< 64 KiB"),
    (1 << 16, 1 << 20, "64 KiB to 1 MiB"),
    (1 << 20, 1 << 26, "1 to 64 MiB"),
    (1 << 26, 1 << 62, ">= 64 MiB"),
)


PCIE_SYSTEMS = ("l40s", "rtx_pro_6000_server")
WORST_REASONS = (
    "L40S on 8 GPUs: a ring's one connection between the sockets reaches 1.2 GB/s where an all_to_all's many",
    "reach 4.5; the preset has the ring's. B200, 16 and 32 MiB on 8 GPUs: NCCL changes from LL to LL128 or",
    "Simple at another size than its model says.",
)


@dataclass(frozen=True)
class Summary:
    """Absolute relative errors of a set of rows."""

    rows: int
    median: float
    p90: float
    worst: float
    bias: float

    @staticmethod
    def of(values: Sequence[float] | np.ndarray) -> Summary:
        """Summarise signed errors."""
        signed = np.asarray(values, dtype=float)
        size = np.abs(signed)
        return Summary(
            len(size),
            float(np.median(size)),
            float(np.quantile(size, 0.9)),
            float(size.max()),
            float(np.median(signed)),
        )

    def __str__(self) -> str:
        return f"{self.rows:5d} {self.median:8.1%} {self.p90:8.1%} {self.worst:8.1%} {self.bias:+8.1%}"


PAGE_HEAD = (
    "Made by `python -m netsim.accuracy --write docs/accuracy-network.md`; do not edit. "
    "Error = predicted / measured - 1; bias is its median. [network.md](network.md) explains."
)
HEADER = f"{'rows':>5} {'median':>8} {'p90':>8} {'worst':>8} {'bias':>8}"


def neutral(cluster: ClusterSpec) -> ClusterSpec:
    """`cluster` with nothing calibrated: NCCL's constants, 90 % of the NICs' line rate."""
    nvlink = cluster.node.nvlink.kind != "none"
    constants = nccl_constants_as_timing(nvlink=nvlink, net_latency_us=cluster.nccl.net_latency_us)
    nccl = replace(cluster.nccl, timing=constants, within_node={}, channel_us=5.0, channel_inter_us=1.0)
    node = replace(cluster.node, nic_efficiency=0.9, nvlink=replace(cluster.node.nvlink, efficiency=0.82))
    return replace(cluster, nccl=nccl, node=node)


def is_fitted_size(m: Measurement) -> bool:
    """Whether a row of the A100 table belongs to the fitted half: sizes 4^k."""
    return int(math.log2(m.size_bytes)) % 2 == 0


def a100_fit() -> Fit:
    """The fit behind the preset a100-azure-nd: sizes 4^k of all world sizes."""
    cluster = neutral(load_cluster("a100-azure-nd"))
    return complete(fit(cluster, [m for m in a100_all_reduce() if is_fitted_size(m)]))


def a100_held_out() -> list[tuple[Measurement, float]]:
    """Errors of the preset a100-azure-nd on the sizes that it was not fitted on."""
    held = [m for m in a100_all_reduce() if not is_fitted_size(m)]
    return list(zip(held, errors(load_cluster("a100-azure-nd"), held).tolist()))


def a100_leave_one_out(world_size: int) -> list[float]:
    """Errors on one world size of a fit on all the others, all sizes."""
    cluster = neutral(load_cluster("a100-azure-nd"))
    rows = a100_all_reduce()
    others = fit(cluster, [m for m in rows if m.ranks != world_size])
    own = [m for m in rows if m.ranks == world_size]
    return errors(others.cluster, own, launch_us=others.launch_us).tolist()


def _within_node_lines() -> list[str]:
    """Errors inside a node when a whole configuration (GPU, operation, type, number of GPUs) was left out."""
    held: dict[tuple[str, str, str], list[float]] = {}
    worst: list[tuple[float, Measurement]] = []
    for rows in rows_by_set(within_node_rows()).values():
        for row, error in held_out_errors(rows):
            m = row.measurement
            size = next(name for low, high, name in SIZE_RANGES if low <= m.size_bytes < high)
            held.setdefault((m.source.split()[0], m.kind, size), []).append(error)
            worst.append((error, m))
    lines = [
        "nccl_within_node.csv.gz, 2 to 8 GPUs of a node; every configuration predicted by a fit without it",
        "",
        f"{'system':<20} {'operation':<15} {'size':<16} {HEADER}",
    ]
    for (system, kind, size), errors_ in sorted(held.items()):
        lines.append(f"{system:<20} {kind:<15} {size:<16} {Summary.of(errors_)}")
    for size in (name for _, _, name in SIZE_RANGES):
        own = [e for (s, _, r), es in held.items() if r == size and s not in PCIE_SYSTEMS for e in es]
        lines.append(f"{'NVLink, all':<20} {'':<15} {size:<16} {Summary.of(own)}")
    lines += ["", "worst rows", ""]
    shown: dict[str, int] = {}
    for error, m in sorted(worst, key=lambda pair: -abs(pair[0])):
        name = f"{m.source.split()[0]} {m.kind}"
        shown[name] = shown.get(name, 0) + 1
        if shown[name] > 1 or len(shown) > 12:
            continue
        lines.append(
            f"{m.source:<28} {m.kind:<15} {m.dtype:<8} {m.ranks} GPUs {m.size_bytes:>10} bytes "
            f"{m.time_us:9.1f} us {error:+8.1%}"
        )
    lines += ["", *WORST_REASONS]
    return lines


def report() -> str:
    """The tables as text."""
    lines = [*_within_node_lines(), ""]
    lines += [
        "nccl_all_reduce_a100.csv, preset a100-azure-nd; fitted on sizes 4^k, error on the others.",
        "2 and 8 GPUs are checks of the times inside a node: an older NCCL, one process for all GPUs",
        "",
    ]
    held = a100_held_out()
    lines.append(f"{'world size':>12} {'size':<18} {HEADER}")
    for world in sorted({m.ranks for m, _ in held}):
        for low, high, name in SIZE_CLASSES:
            own = [e for m, e in held if m.ranks == world and low <= m.size_bytes < high]
            if own:
                lines.append(f"{world:12d} {name:<18} {Summary.of(own)}")
    lines.append(f"{'all':>12} {'':<18} {Summary.of([e for _, e in held])}")
    lines += [
        "",
        "the same table, one world size left out of the fit",
        "",
        f"{'left out':>12} {'':<18} {HEADER}",
    ]
    pooled: list[float] = []
    for world in sorted({m.ranks for m, _ in held}):
        own = a100_leave_one_out(world)
        pooled += own
        lines.append(f"{world:12d} {'':<18} {Summary.of(own)}")
    lines.append(f"{'all':>12} {'':<18} {Summary.of(pooled)}")
    lines += [
        "",
        "nccl.csv by source, rows that did not fit the preset",
        "",
        f"{'':<40} {'preset':<14} {HEADER}",
    ]
    for source in SOURCES:
        _, rows = rows_of_source(source)
        summary = Summary.of(errors(cluster_of(source), rows))
        lines.append(f"{source.name:<40} {source.preset:<14} {summary}")
        if source.note:
            lines.append(f"{'':<6}({source.note})")
    return "\n".join(lines)


def refit(preset: str) -> Fit:
    """Fit a preset on the fitted halves of its sources."""
    if preset == "a100-azure-nd":
        return a100_fit()
    rows: list[Measurement] = []
    version = ""
    for source in SOURCES:
        if source.preset == preset and source.fitted:
            rows += rows_of_source(source)[0]
            version = version or source.version
    preset_cluster = load_cluster(preset)
    cluster = neutral(preset_cluster)
    # The NICs' share is only fitted where no preset states it; the prior starts from the preset's.
    cluster = replace(cluster, node=preset_cluster.node)
    if version:
        cluster = replace(cluster, nccl=replace(cluster.nccl, version=version))
    prior = dict(cluster.nccl.timing)
    return complete(fit(cluster, rows, prior=prior))


def complete(result: Fit) -> Fit:
    """Give what the rows could not determine the defaults, in place of NCCL's constants.

    Where a network plug-in is slow, hops that were not measured are as much slower than NCCL's constants as
    the measured ones are.
    """
    cluster = result.cluster
    late = cluster.nccl.net_latency_us
    default = default_timing(cluster.gpu, cluster.node, late)
    constants = nccl_constants_as_timing(nvlink=cluster.node.nvlink.kind != "none", net_latency_us=late)
    hops = [key for key, name in sorted(result.fitted) if name == "inter_us"]
    ratios = [math.log(cluster.nccl.timing[key].inter_us / constants[key].inter_us) for key in hops]
    slower = math.exp(sum(ratios) / len(ratios)) if ratios and late else 0.0
    timing, fitted = dict(cluster.nccl.timing), set(result.fitted)
    for key, old in default.items():
        own = {
            f.name: getattr(timing[key], f.name) for f in fields(ProtocolTiming) if (key, f.name) in fitted
        }
        if slower and "inter_us" not in own and not key.startswith("gloo"):
            own["inter_us"] = float(f"{constants[key].inter_us * slower:.4g}")
            fitted.add((key, "inter_us"))
        timing[key] = replace(old, **own)
    nccl = replace(cluster.nccl, timing=timing)
    return replace(result, cluster=replace(cluster, nccl=nccl), fitted=frozenset(fitted))


def _judged(folder: Path, *, as_json: bool) -> str:
    found = summarise(checks(folder))
    if as_json:
        return json.dumps([e.as_json() for e in found], indent=1)
    lines = [f"{'table':<26} {'gpu':<36} {'class':<34} {HEADER}"]
    lines += [
        f"{e.table:<26} {e.gpu:<36} {e.klass:<34} {e.rows:5d} {e.median:8.1f} {e.p90:8.1f} "
        f"{e.worst:8.1f} {e.bias:+8.1f}"
        for e in found
    ]
    return "\n".join(lines)


def main() -> None:
    """Print the tables, or with --refit the fitted parameters of every preset that has measurements."""
    parser = argparse.ArgumentParser(prog="python -m netsim.accuracy", description=main.__doc__)
    parser.add_argument("--refit", action="store_true", help="print fitted [nccl] tables instead")
    parser.add_argument("--write", metavar="FILE", help="write the tables as a Markdown page")
    parser.add_argument("--data", metavar="FOLDER", help="check every row of the tables in a folder instead")
    parser.add_argument(
        "--json", action="store_true", help="with --data: print the errors as JSON, in percent"
    )
    options = parser.parse_args()
    if options.json and not options.data:
        parser.error("--json needs --data FOLDER")
    if options.data:
        print(_judged(Path(options.data), as_json=options.json))
        return
    if options.write:
        page = f"# Accuracy of the network\n\n{PAGE_HEAD}\n\n```\n{report()}\n```\n"
        Path(options.write).write_text(page, encoding="utf-8")
        return
    if not options.refit:
        print(report())
        return
    for preset in ["a100-azure-nd", *sorted({s.preset for s in SOURCES if s.fitted})]:
        result = refit(preset)
        node, nccl = result.cluster.node, result.cluster.nccl
        print(f"# {preset}: NICs {node.nic_efficiency:g}, NVLink {node.nvlink.efficiency:g} of the line rate")
        print(f"[nccl]\nchannel_us = {nccl.channel_us:g}\nchannel_inter_us = {nccl.channel_inter_us:g}\n")
        print("[nccl.timing]")
        print("\n".join(timing_lines(result)) + "\n")


if __name__ == "__main__":
    main()
