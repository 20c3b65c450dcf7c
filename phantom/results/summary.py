"""`summary.json` (schema version 1) from what ranks and engine report. Times in seconds, sizes in bytes."""

from __future__ import annotations

import resource
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Any

import msgspec

from netsim.errors import NetsimError
from netsim.network import Network
from netsim.outside import printable
from phantom.engine import Engine
from phantom.engine.statistics import CollectiveTotal, RankReport, Statistics
from phantom.results.limits import Placement, bus_limit_bytes_per_s, uneven_limit_bytes_per_s
from phantom.results.routers import moe_routers
from phantom.results.run_summary import SCHEMA, Summary, summary_from

_PS = 1e12


def summarize(
    engine: Engine,
    *,
    network: Network,
    cluster: str,
    nodes: int,
    command: Sequence[str],
    statuses: Mapping[str, int],
    interrupted: bool,
    wall_s: float,
) -> Summary:
    """The summary at any moment; partial while the job runs. `statuses`: exit status by rank, as text."""
    statistics = engine.statistics
    status = job_status(engine, statuses, interrupted)
    steps = step_times(statistics, everything=status == "ok")
    counted = [step["index"] for step in steps[1:] or steps]
    found = {
        "schema": SCHEMA,
        "command": [printable(word) for word in command],
        "cluster": cluster,
        "world_size": engine.world_size,
        "nodes": nodes,
        "status": status,
        "steps": steps,
        "step_virtual_s": _spread([step["virtual_s"] for step in steps[1:] or steps]),
        "ranks": [
            _rank(rank, report, counted) for rank, report in enumerate(statistics.ranks[: engine.world_size])
        ],
        "mfu": _utilisation(statistics.ranks, counted),
        "coverage": _coverage(statistics.ranks),
        "unpriced_ops": [
            {"op": op, "count": count}
            for op, count in _ordered(_merged(report.latest.unpriced for report in statistics.ranks))
        ],
        "unknown_value_reads": [
            {"where": where, "count": count}
            for where, count in _ordered(_merged(report.latest.unknown_reads for report in statistics.ranks))
        ],
        "moe_routers": moe_routers(statistics.ranks),
        "collectives": collective_totals(statistics, network),
        "gpus_per_node": network.topology.gpus_per_node,
        "gpu": _gpu(network),
        "kernels": _kernel_classes(statistics.ranks),
        "top_kernels": _top_kernels(statistics.ranks),
        "wall_s": wall_s,
        "simulator": {
            **engine.scheduler_counts,
            "records": engine.records,
            "peak_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        },
        "stand_ins": _stand_ins(statistics.ranks),
        "warnings": _warnings(statistics) + (missing_steps(statistics) if status == "ok" else []),
        "faults": [
            {"rank": rank, **msgspec.to_builtins(fault)}
            for rank, report in enumerate(statistics.ranks)
            for fault in report.faults
        ],
        "failure": None
        if engine.failure is None
        else {"kind": engine.failure.kind, "message": engine.failure.message},
    }
    return summary_from(found)


def job_status(engine: Engine, statuses: Mapping[str, int], interrupted: bool) -> str:
    """ok, failed, deadlock, oom or interrupted. An OOM that the script survived does not count."""
    failure = engine.failure
    if failure is not None and failure.kind == "deadlock":
        return "deadlock"
    failed = any(statuses.values()) or failure is not None
    if failed and any(_had_oom(report) for report in engine.statistics.ranks):
        return "oom"
    if interrupted:
        return "interrupted"
    return "failed" if failed else "ok"


def missing_steps(statistics: Statistics) -> list[str]:
    """Ranks whose own account (STATS) lacks steps whose ends they have announced: shares of their time, and
    utilisation, leave those steps out."""
    lines = []
    for rank, count in sorted(statistics.step_count_by_rank.items()):
        missing = count - len({row.index for row in statistics.ranks[rank].steps})
        if missing > 0:
            lines.append(f"rank {rank} did not account for {missing} of its {count} steps: their compute, "
                         f"communication and idle times are missing under `ranks`")  # fmt: skip
    return lines


def _had_oom(report: RankReport) -> bool:
    return report.latest.oom or bool(report.faults)


def step_times(statistics: Statistics, *, everything: bool) -> list[dict[str, Any]]:
    """One entry per step: end_k is the latest device tail over all ranks, virtual_s = end_k - end_(k-1).

    Step 0 counts from the first kernel of any rank. Unless `everything`, steps that some rank has not
    finished are left out, since their end is not known.
    """
    counts = statistics.step_count_by_rank
    complete = max(counts.values(), default=0) if everything else min(counts.values(), default=0)
    firsts = [report.latest.first_kernel_ps for report in statistics.ranks]
    before_ps = min((first for first in firsts if first >= 0), default=0)
    steps: list[dict[str, Any]] = []
    for index in sorted(statistics.step_end_ps):
        if index >= complete:
            break
        end_ps = statistics.step_end_ps[index]
        steps.append({"index": index, "virtual_s": (end_ps - before_ps) / _PS, "end_s": end_ps / _PS})
        before_ps = end_ps
    return steps


def _spread(values: Sequence[float]) -> dict[str, float]:
    if not values:
        return {}
    return {
        "median": median(values),
        "mean": sum(values) / len(values),
        "min": min(values),
        "max": max(values),
    }


def _rank(rank: int, report: RankReport, counted: Sequence[int]) -> dict[str, Any]:
    """`compute_s`, `exposed_communication_s` and `idle_s` are sums over the counted steps (all but the
    first).
    """
    chosen = set(counted)
    rows = sorted(report.steps, key=lambda row: row.index)
    counted_rows = [row for row in rows if row.index in chosen]
    latest = report.latest
    return {
        "rank": rank,
        "steps_virtual_s": [(row.compute_ps + row.exposed_ps + row.idle_ps) / _PS for row in rows],
        "compute_s": sum(row.compute_ps for row in counted_rows) / _PS,
        "exposed_communication_s": sum(row.exposed_ps for row in counted_rows) / _PS,
        "idle_s": sum(row.idle_ps for row in counted_rows) / _PS,
        "peak_allocated_bytes": latest.peak_allocated_bytes,
        "peak_reserved_bytes": latest.peak_reserved_bytes,
        "ops": latest.ops,
        "oom": _had_oom(report),
        "host_lazy_bytes": latest.host_lazy_bytes,
        "host_held_bytes": dict(latest.host_held_bytes),
        "host_work": {
            name: {"count": work.count, "virtual_s": work.total_ps / _PS}
            for name, work in sorted(latest.host_work.items())
        },
    }


def _utilisation(reports: Sequence[RankReport], counted: Sequence[int]) -> float | None:
    """Share of the counted steps' device time that the matrix products would take at the GPU's dense peak.

    Recomputed products (activation checkpointing) count. None where no step or no product was seen.
    """
    ideal_ps = 0
    total_ps = 0
    for report in reports:
        rows = [row for row in report.steps if row.index in set(counted)]
        total_ps += sum(row.compute_ps + row.exposed_ps + row.idle_ps for row in rows)
        first_ps = report.latest.ideal_first_step_ps if 0 not in counted else 0
        ideal_ps += report.latest.ideal_ps - first_ps
    return ideal_ps / total_ps if ideal_ps > 0 and total_ps else None


def _coverage(reports: Sequence[RankReport]) -> dict[str, float]:
    """Shares of device time by source; `unpriced` is a share of operators, as their time is not known."""
    times = _merged(report.latest.sources for report in reports)
    total = sum(ps for source, ps in times.items() if source in ("measured", "predicted"))
    unpriced = sum(_merged(report.latest.unpriced for report in reports).values())
    ops = sum(report.latest.ops for report in reports)
    return {
        "measured": times["measured"] / total if total else 0.0,
        "predicted": times["predicted"] / total if total else 0.0,
        "unpriced": unpriced / ops if ops else 0.0,
    }


def _merged(counts: Iterable[Mapping[str, int]]) -> Counter[str]:
    merged: Counter[str] = Counter()
    for each in counts:
        merged.update(each)
    return merged


def _ordered(counts: Counter[str]) -> list[tuple[str, int]]:
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))


def collective_totals(statistics: Statistics, network: Network) -> list[dict[str, Any]]:
    """Totals per kind, group size, placement and message size; bandwidths by the factors of nccl-tests, from
    the mean time.
    """
    rows = []
    for key in sorted(statistics.collectives):
        total = statistics.collectives[key]
        rows.append(_collective(total, network))
    return sorted(rows, key=lambda row: -row["virtual_s"])


def _collective(total: CollectiveTotal, network: Network) -> dict[str, Any]:
    try:
        choice = network.describe(total.example)
        algorithm, protocol, channels, factor = (
            choice.algorithm,
            choice.protocol,
            choice.channels,
            choice.bus_factor,
        )
    except NetsimError:
        algorithm, protocol, channels, factor = "unknown", "unknown", 0, 1.0
    seconds = total.total_ps / _PS
    bandwidth = total.bytes_sum * factor / seconds if seconds else 0.0
    gpus_per_node = network.topology.gpus_per_node
    if total.example.send_counts is None:
        limit = bus_limit_bytes_per_s(network.cluster, total.example, algorithm, gpus_per_node=gpus_per_node)
    elif total.uneven is not None:
        limit = uneven_limit_bytes_per_s(network.cluster, total.uneven, gpus_per_node=gpus_per_node)
    else:
        limit = None
    kind = "send_recv" if total.kind == "p2p" else total.kind
    return {
        "kind": total.example.direction if total.kind == "transfer" else kind,
        "ranks": total.ranks,
        "nodes": Placement(network.cluster, gpus_per_node)(total.example)[0],
        "bytes": total.size_bytes,
        "count": total.count,
        "virtual_s": seconds,
        "algorithm": algorithm,
        "protocol": protocol,
        "channels": channels,
        "backend": total.backend,
        "bus_bandwidth_bytes_per_s": bandwidth,
        "bus_limit_bytes_per_s": limit,
    }


def _gpu(network: Network) -> dict[str, Any]:
    """The simulated GPU: name, memory and dense peaks."""
    gpu = network.cluster.gpu
    return {"name": gpu.name, "memory_bytes": gpu.memory_bytes, "peak_flops": dict(gpu.peak_flops)}


def _kernel_classes(reports: Sequence[RankReport]) -> list[dict[str, Any]]:
    counts: Counter[str] = Counter()
    times: Counter[str] = Counter()
    for report in reports:
        for name, total in report.latest.kernels.items():
            counts[name] += total.count
            times[name] += total.total_ps
    return [{"class": name, "count": counts[name], "virtual_s": ps / _PS} for name, ps in _ordered(times)]


def _top_kernels(reports: Sequence[RankReport], limit: int = 50) -> list[dict[str, Any]]:
    counts: Counter[tuple[str, str, str]] = Counter()
    times: Counter[tuple[str, str, str]] = Counter()
    for report in reports:
        for kernel in report.latest.top:
            key = (kernel.name, kernel.source, kernel.klass)
            counts[key] += kernel.count
            times[key] += kernel.total_ps
    ordered = sorted(times.items(), key=lambda item: (-item[1], item[0]))[:limit]
    return [
        {
            "name": name,
            "class": klass,
            "source": source,
            "count": counts[name, source, klass],
            "virtual_s": ps / _PS,
        }
        for (name, source, klass), ps in ordered
    ]


def _stand_ins(reports: Sequence[RankReport]) -> list[dict[str, Any]]:
    """Libraries that phantom stood in for, with the version that the stand-in follows and how many ranks."""
    ranks = Counter(pair for report in reports for pair in report.latest.stand_ins.items())
    return [
        {"library": name, "version": version, "ranks": count}
        for (name, version), count in sorted(ranks.items())
    ]


def _warnings(statistics: Statistics) -> list[str]:
    counted = sorted(statistics.warnings.items())
    lines = [text if count == 1 else f"{text} ({count} times)" for text, count in counted]
    by_text: dict[str, list[int]] = {}
    for rank, report in enumerate(statistics.ranks):
        for text in report.latest.warnings:
            by_text.setdefault(text, []).append(rank)
    for text, ranks in sorted(by_text.items()):
        who = f"rank {ranks[0]}" if len(ranks) == 1 else f"{len(ranks)} ranks"
        lines.append(f"{text} ({who})")
    return lines
