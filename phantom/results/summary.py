"""`summary.json` (schema version 1) from what ranks and engine report. Times in seconds, sizes in bytes."""

from __future__ import annotations

import resource
from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

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
            {"op": op, "count": count} for op, count in _ordered(_merged(statistics.ranks, "unpriced"))
        ],
        "unknown_value_reads": [
            {"where": where, "count": count}
            for where, count in _ordered(_merged(statistics.ranks, "unknown_reads"))
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
            {"rank": rank, **fault} for rank, report in enumerate(statistics.ranks) for fault in report.faults
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
        missing = count - len({row[0] for row in statistics.ranks[rank].steps})
        if missing > 0:
            lines.append(f"rank {rank} did not account for {missing} of its {count} steps: their compute, "
                         f"communication and idle times are missing under `ranks`")  # fmt: skip
    return lines


def _had_oom(report: RankReport) -> bool:
    return bool(report.latest.get("oom")) or any(fault.get("kind") == "oom" for fault in report.faults)


def step_times(statistics: Statistics, *, everything: bool) -> list[dict[str, Any]]:
    """One entry per step: end_k is the latest device tail over all ranks, virtual_s = end_k - end_(k-1).

    Step 0 counts from the first kernel of any rank. Unless `everything`, steps that some rank has not
    finished are left out, since their end is not known.
    """
    counts = statistics.step_count_by_rank
    complete = max(counts.values(), default=0) if everything else min(counts.values(), default=0)
    firsts = [report.latest.get("first_kernel_ps", -1) for report in statistics.ranks]
    before_ps = min((first for first in firsts if first is not None and first >= 0), default=0)
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
    rows = sorted(report.steps)
    sums = [sum(row[column] for row in rows if row[0] in chosen) / _PS for column in (2, 3, 4)]
    latest = report.latest
    return {
        "rank": rank,
        "steps_virtual_s": [(row[2] + row[3] + row[4]) / _PS for row in rows],
        "compute_s": sums[0],
        "exposed_communication_s": sums[1],
        "idle_s": sums[2],
        "peak_allocated_bytes": latest.get("peak_allocated_bytes", 0),
        "peak_reserved_bytes": latest.get("peak_reserved_bytes", 0),
        "ops": latest.get("ops", 0),
        "oom": _had_oom(report),
        "host_lazy_bytes": latest.get("host_lazy_bytes", 0),
        "host_held_bytes": dict(latest.get("host_held_bytes") or {}),
        "host_work": {
            name: {"count": count, "virtual_s": ps / _PS}
            for name, (count, ps) in sorted((latest.get("host_work") or {}).items())
        },
    }


def _utilisation(reports: Sequence[RankReport], counted: Sequence[int]) -> float | None:
    """Share of the counted steps' device time that the matrix products would take at the GPU's dense peak.

    Recomputed products (activation checkpointing) count. None where no step or no product was seen.
    """
    ideal_ps = 0
    total_ps = 0
    for report in reports:
        rows = [row for row in report.steps if row[0] in set(counted)]
        total_ps += sum(row[2] + row[3] + row[4] for row in rows)
        first_ps = report.latest.get("ideal_first_step_ps", 0) if 0 not in counted else 0
        ideal_ps += report.latest.get("ideal_ps", 0) - first_ps
    return ideal_ps / total_ps if ideal_ps > 0 and total_ps else None


def _coverage(reports: Sequence[RankReport]) -> dict[str, float]:
    """Shares of device time by source; `unpriced` is a share of operators, as their time is not known."""
    times = _merged(reports, "sources")
    total = sum(ps for source, ps in times.items() if source in ("measured", "predicted"))
    unpriced = sum(_merged(reports, "unpriced").values())
    ops = sum(int(report.latest.get("ops") or 0) for report in reports)
    return {
        "measured": times["measured"] / total if total else 0.0,
        "predicted": times["predicted"] / total if total else 0.0,
        "unpriced": unpriced / ops if ops else 0.0,
    }


def _merged(reports: Sequence[RankReport], key: str) -> Counter[str]:
    merged: Counter[str] = Counter()
    for report in reports:
        for name, count in (report.latest.get(key) or {}).items():
            merged[name] += count
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
        for name, (count, ps) in (report.latest.get("kernels") or {}).items():
            counts[name] += count
            times[name] += ps
    return [{"class": name, "count": counts[name], "virtual_s": ps / _PS} for name, ps in _ordered(times)]


def _top_kernels(reports: Sequence[RankReport], limit: int = 50) -> list[dict[str, Any]]:
    counts: Counter[tuple[str, str, str]] = Counter()
    times: Counter[tuple[str, str, str]] = Counter()
    for report in reports:
        for name, source, count, ps, *rest in report.latest.get("top") or ():
            key = (name, source, rest[0] if rest else "other")
            counts[key] += count
            times[key] += ps
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
    ranks = Counter(pair for report in reports for pair in (report.latest.get("stand_ins") or {}).items())
    return [
        {"library": name, "version": version, "ranks": count}
        for (name, version), count in sorted(ranks.items())
    ]


def _warnings(statistics: Statistics) -> list[str]:
    counted = sorted(statistics.warnings.items())
    lines = [text if count == 1 else f"{text} ({count} times)" for text, count in counted]
    by_text: dict[str, list[int]] = {}
    for rank, report in enumerate(statistics.ranks):
        for text in report.latest.get("warnings") or ():
            by_text.setdefault(text, []).append(rank)
    for text, ranks in sorted(by_text.items()):
        who = f"rank {ranks[0]}" if len(ranks) == 1 else f"{len(ranks)} ranks"
        lines.append(f"{text} ({who})")
    return lines
