"""The figures and lists that the terminal and report.html show of a summary, as text."""

from __future__ import annotations

from dataclasses import dataclass, replace

from phantom.results.run_summary import CollectiveSummary, KernelClass, Summary, TopKernel
from phantom.terminal.units import count, many, rate, seconds, share, size

TOP_KERNELS, TOP_COLLECTIVES, TOP_COPIES = 10, 5, 3
HOST_COPIES = {"h2d": "host to device", "d2h": "device to host"}
RANKS_NAMED = 16
NAME = 36
"""Characters that a name keeps before a narrow terminal goes without a column."""

Row = tuple[str, str]


def _times(summary: Summary) -> list[Row]:
    steps, step = summary.steps, summary.step_virtual_s
    if not steps:
        return [("steps", "none seen (no torch.optim optimizer was stepped)")]
    counted = many(len(steps), "step") + (", the first left out" if len(steps) > 1 else "")
    rows = [
        ("step time, median", f"{seconds(step.median)}  ({counted})"),
        ("step time, min / max", f"{seconds(step.min)} / {seconds(step.max)}"),
    ]
    if summary.tokens_per_s is not None:
        rows.append(("tokens/s", count(summary.tokens_per_s)))
    if summary.samples_per_s is not None:
        rows.append(("samples/s", f"{summary.samples_per_s:,.1f}"))
    if summary.mfu is not None:
        rows.append(("model FLOP/s utilisation", share(summary.mfu)))
    return rows


def time_parts(summary: Summary) -> tuple[float, float, float]:
    """Compute, exposed communication and idle, summed over all ranks, in seconds."""
    ranks = summary.ranks
    return (
        sum(rank.compute_s for rank in ranks),
        sum(rank.exposed_communication_s for rank in ranks),
        sum(rank.idle_s for rank in ranks),
    )


def _shares(summary: Summary) -> list[Row]:
    parts = time_parts(summary)
    if sum(parts) <= 0:
        return []
    text = " / ".join(share(part / sum(parts)) for part in parts)
    rows = [("compute / exposed communication / idle", text)]
    if summary.detail is not None:
        rows.append(("  of it waiting for other ranks", share(summary.detail.waiting_for_ranks)))
        if summary.detail.bubble is not None:
            rows.append(("pipeline bubble", share(summary.detail.bubble)))
    return rows


def _memory(summary: Summary) -> list[Row]:
    ranks, capacity = summary.ranks, summary.memory_bytes
    if not ranks:
        return []
    peak = max(ranks, key=lambda rank: rank.peak_allocated_bytes)
    text = (
        f"{size(peak.peak_allocated_bytes)} allocated, {size(peak.peak_reserved_bytes)} reserved "
        f"(rank {peak.rank})"
    )
    rows = [("peak memory per rank", text + (f" of {size(capacity)}" if capacity else ""))]
    out = [str(rank.rank) for rank in ranks if rank.oom]
    if out:
        more = f" and {len(out) - RANKS_NAMED} more" if len(out) > RANKS_NAMED else ""
        word = "rank" if len(out) == 1 else "ranks"
        rows.append(("out of memory", f"{word} {', '.join(out[:RANKS_NAMED])}{more}"))
    return rows


def _links(summary: Summary) -> list[Row]:
    if not summary.links:
        return []
    busiest = summary.links[0]
    text = f"{busiest.busiest}: {share(busiest.busiest_utilisation)} of its capacity"
    return [("busiest link", f"{text}, at most {share(busiest.peak_utilisation)} at a time")]


def sources(summary: Summary) -> str:
    """Shares of device time by source of the cost; empty where no kernel ran."""
    coverage = summary.coverage
    parts = [("measured", coverage.measured), ("predicted", coverage.predicted)]
    parts.append(("unpriced", coverage.unpriced))
    return ", ".join(f"{name} {share(value)}" for name, value in parts if value)


def _coverage(summary: Summary) -> list[Row]:
    unpriced = sum(op.count for op in summary.unpriced_ops)
    more = f"; {many(unpriced, 'call')} without a cost" if unpriced else ""
    rows = []
    if summary.steps or more or sources(summary):
        rows.append(("kernel costs", (sources(summary) or "no kernel") + more))
    reads = sum(read.count for read in summary.unknown_value_reads)
    if reads:
        rows.append(("reads of values never computed", count(reads)))
    return rows


def _routing(summary: Summary) -> list[Row]:
    routers = summary.moe_routers
    if not routers:
        return []
    sizes = sorted({(router.choices, router.experts) for router in routers})
    chosen = ", ".join(f"{choices} of {experts}" for choices, experts in sizes)
    busiest = max(router.busiest_share for router in routers)
    return [("MoE routing", f"{summary.moe_routing}: {chosen} experts, the busiest {share(busiest)}")]


def job_line(summary: Summary) -> str:
    """How large the job is and on what it runs, such as "8 GPUs on 1 node of h100-dgx"."""
    place = f"{many(summary.world_size, 'GPU')} on {many(summary.nodes, 'node')}"
    return f"{place} of {summary.cluster}" if summary.cluster else place


def rows(summary: Summary) -> list[Row]:
    """The key figures: what, value. docs/results.md says what each means."""
    found = [("job", job_line(summary)), ("status", summary.status)]
    found += _times(summary) + _shares(summary) + _links(summary) + _memory(summary)
    found += _routing(summary) + _coverage(summary)
    found.append(("real time", f"{summary.wall_s:.1f} s"))
    return found


def computing(summary: Summary) -> tuple[list[TopKernel], list[KernelClass], float]:
    """Kernels and classes without communication, and their time in all (0 where there is none)."""
    kernels = [kernel for kernel in summary.top_kernels if kernel.source != "network"]
    classes = [klass for klass in summary.kernels if klass.klass != "communication"]
    total_s = sum(klass.virtual_s for klass in classes) or sum(kernel.virtual_s for kernel in kernels)
    return kernels, classes, total_s


def collectives(summary: Summary) -> list[CollectiveSummary]:
    """Collectives and messages between ranks."""
    return [c for c in summary.collectives if c.kind not in HOST_COPIES]


def copies(summary: Summary) -> list[CollectiveSummary]:
    """Copies between host and device."""
    return [c for c in summary.collectives if c.kind in HOST_COPIES]


def group(collective: CollectiveSummary) -> str:
    """The group's size, with its nodes where it spans several."""
    if collective.nodes < 2:
        return str(collective.ranks)
    return f"{collective.ranks} on {many(collective.nodes, 'node')}"


@dataclass(frozen=True, kw_only=True)
class Listing:
    """A list under a title. The first `left` columns are text. `spare`: columns that a narrow terminal goes
    without, the least important first.
    """

    title: str
    columns: tuple[str, ...]
    entries: tuple[tuple[str, ...], ...]
    left: int
    spare: tuple[str, ...] = ()

    def without(self, column: str) -> Listing:
        """The same list with one column less."""
        at = self.columns.index(column)
        return replace(
            self,
            columns=self.columns[:at] + self.columns[at + 1 :],
            entries=tuple(entry[:at] + entry[at + 1 :] for entry in self.entries),
            left=self.left - (at < self.left),
            spare=tuple(name for name in self.spare if name != column),
        )

    def width(self, *, gap: int = 2) -> int:
        """Characters of the widest line with `gap` between columns; long names count as NAME."""
        cells = [max(len(row[i]) for row in [self.columns, *self.entries]) for i in range(len(self.columns))]
        return sum(cells[1:]) + min(cells[0], NAME) + gap * (len(cells) - 1)

    def fitted(self, width: int, *, gap: int = 2) -> Listing:
        """The list without as many spare columns as it takes to fit, and with long names cut."""
        listing = self
        while listing.width(gap=gap) > width and listing.spare:
            listing = listing.without(listing.spare[0])
        cells = max(len(row[0]) for row in [listing.columns, *listing.entries])
        room = max(width - listing.width(gap=gap) + min(cells, NAME), 8)
        entries = tuple((_cut(name, room), *others) for name, *others in listing.entries)
        return replace(listing, entries=entries)


def _cut(text: str, room: int) -> str:
    return text if len(text) <= room else text[: room - 1] + "…"


def kernel_list(summary: Summary, limit: int = TOP_KERNELS) -> Listing:
    """The kernels with most time."""
    kernels, _, total_s = computing(summary)
    return Listing(
        title="Kernels with most time, all ranks",
        columns=("kernel", "cost from", "calls", "time", "share"),
        left=2,
        spare=("cost from", "calls"),
        entries=tuple(
            (k.name, k.source, count(k.count), seconds(k.virtual_s), share(k.virtual_s / total_s))
            for k in kernels[:limit]
            if total_s > 0
        ),
    )


def collective_list(summary: Summary, limit: int = TOP_COLLECTIVES) -> Listing:
    """The collectives with most time."""
    return Listing(
        title="Collectives with most time",
        columns=(
            *("collective", "ranks", "size", "count", "time each", "algorithm"),
            *("bus bandwidth", "limit"),
        ),
        left=2,
        spare=("algorithm", "limit", "count"),
        entries=tuple(
            (
                c.kind,
                group(c),
                size(c.bytes),
                count(c.count),
                seconds(c.each_s),
                f"{c.algorithm}/{c.protocol}",
                rate(c.bus_bandwidth_bytes_per_s),
                rate(c.bus_limit_bytes_per_s),
            )
            for c in collectives(summary)[:limit]
        ),
    )


def copy_list(summary: Summary, limit: int = TOP_COPIES) -> Listing:
    """The copies between host and device with most time."""
    return Listing(
        title="Copies with most time",
        columns=("copy", "size", "count", "time each", "bandwidth"),
        left=1,
        entries=tuple(
            (
                HOST_COPIES[c.kind],
                size(c.bytes),
                count(c.count),
                seconds(c.each_s),
                rate(c.bus_bandwidth_bytes_per_s),
            )
            for c in copies(summary)[:limit]
        ),
    )


def listings(summary: Summary) -> list[Listing]:
    """All lists that have an entry."""
    found = (kernel_list(summary), collective_list(summary), copy_list(summary))
    return [listing for listing in found if listing.entries]
