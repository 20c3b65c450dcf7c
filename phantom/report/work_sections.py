"""Sections of the page about what was done: kernels, collectives, memory."""

from __future__ import annotations

from typing import Any

from phantom.report import markup as m
from phantom.report.links import by_kind, link_shares
from phantom.report.memory import CATEGORIES, Peak, peaks
from phantom.results.run_summary import Summary
from phantom.terminal.figures import HOST_COPIES, computing, sources
from phantom.terminal.units import count, rate, seconds, share, size
from phantom.timeline.counters import memory_curve, thin
from phantom.timeline.recording import Recording

CURVE_POINTS = 600
BUSIEST_LINKS = 24


def kernels(summary: Summary) -> str:
    """Kernels by share, with the source of their cost."""
    listed, classes, total = computing(summary)
    total = total or 1.0
    lines = [
        [
            m.code(k.name),
            m.text(k.klass),
            f'<span class="tag {m.text(k.source)}">{m.text(k.source)}</span>',
            (count(k.count), k.count),
            (seconds(k.virtual_s / k.count if k.count else 0), k.virtual_s / max(k.count, 1)),
            (seconds(k.virtual_s), k.virtual_s),
            (m.meter(k.virtual_s / total), k.virtual_s),
        ]
        for k in listed
    ]
    columns = [("kernel", "text"), ("class", "text"), ("cost from", "text"), ("calls", "number")]
    columns += [("time each", "number"), ("time, all ranks", "number"), ("share", "number")]
    by_class = [
        [
            m.text(c.klass),
            (count(c.count), c.count),
            (seconds(c.virtual_s), c.virtual_s),
            (m.meter(c.virtual_s / total), c.virtual_s),
        ]
        for c in classes
    ]
    class_columns = [
        ("class", "text"),
        ("calls", "number"),
        ("time, all ranks", "number"),
        ("share", "number"),
    ]
    said = sources(summary) or "none"
    parts = [f"<p>Share of device time by source of the cost: {m.text(said)}.</p>"]
    if by_class:
        parts.append(m.table(class_columns, by_class, caption="Kernels by class"))
    parts.append(m.table(columns, lines, caption="Kernels with most time"))
    if summary.unpriced_ops:
        rows = [[m.code(o.op), (count(o.count), o.count)] for o in summary.unpriced_ops]
        unpriced = m.table(
            [("operator without a cost", "text"), ("calls", "number")], rows, caption="Unpriced"
        )
        parts.append(unpriced)
    return m.section("kernels", "Kernels", *parts)


def collectives(summary: Summary) -> str:
    """Collectives by kind, group and size."""
    rows, copies = [], []
    for c in summary.collectives:
        bandwidth, limit = c.bus_bandwidth_bytes_per_s, c.bus_limit_bytes_per_s
        reached = bandwidth / limit if bandwidth and limit else None
        each_s = c.each_s or 0.0
        choice = "/".join(word for word in (c.algorithm, c.protocol) if word)
        channels = f" <small>{c.channels} ch</small>" if c.channels else ""
        nodes = f" <small>{c.nodes} nodes</small>" if c.nodes > 1 else ""
        amount: list[Any] = [(size(c.bytes), c.bytes), (count(c.count), c.count)]
        amount += [(seconds(each_s), each_s), (seconds(c.virtual_s), c.virtual_s)]
        speed = [
            (rate(bandwidth), bandwidth or 0.0),
            (rate(limit), limit or 0.0),
            (m.meter(reached, kind="exposed") if reached is not None else "-", reached or 0.0),
        ]
        if c.kind in HOST_COPIES:
            copies.append([m.text(HOST_COPIES[c.kind]), *amount, *speed])
        else:
            group = (m.text(c.ranks) + nodes, c.ranks)
            rows.append([m.text(c.kind), group, *amount, m.text(choice) + channels, *speed])
    copied = []
    if copies:
        columns = [("copy", "text"), ("size", "number"), ("count", "number"), ("time each", "number")]
        columns += [("time in total", "number"), ("bandwidth", "number"), ("link's limit", "number")]
        listed = m.table([*columns, ("reached", "number")], copies, caption="Copies by direction and size")
        copied.append(f"<details><summary>Copies between host and device</summary>{listed}</details>")
    if not rows:
        return m.section("collectives", "Collectives", "<p>The job communicated nothing.</p>", *copied)
    columns = [("kind", "text"), ("ranks", "number"), ("size", "number"), ("count", "number")]
    columns += [("time each", "number"), ("time in total", "number"), ("algorithm", "text")]
    columns += [("bus bandwidth", "number"), ("link's limit", "number"), ("reached", "number")]
    return m.section(
        "collectives",
        "Collectives",
        m.table(columns, rows, caption="Collectives by kind, group size and message size"),
        *copied,
        intro="Bus bandwidth as nccl-tests define it, from the mean time. The limit is what the line rates "
        "of the slowest links on the way allow; waiting for ranks that come late is not part of the time.",
    )


def links(recording: Recording) -> str:
    """Use of the links by kind, and the busiest ones."""
    shares = link_shares(recording)
    if not shares:
        return m.section("links", "Links", "<p>No link carried anything in the recorded steps.</p>")
    kinds = [
        [
            m.code(k.kind),
            (count(k.links), k.links),
            (rate(k.capacity_bytes_per_s), k.capacity_bytes_per_s),
            (size(k.bytes), k.bytes),
            (m.meter(k.utilisation, kind="exposed"), k.utilisation),
            (share(k.busiest_utilisation), k.busiest_utilisation),
            (share(k.peak_utilisation), k.peak_utilisation),
        ]
        for k in by_kind(shares)
    ]
    columns = [("kind of link", "text"), ("used", "number"), ("capacity", "number"), ("carried", "number")]
    columns += [("mean use", "number"), ("busiest", "number"), ("peak", "number")]
    busiest = [
        [
            m.code(link.name),
            (rate(link.capacity_bytes_per_s), link.capacity_bytes_per_s),
            (size(link.bytes), link.bytes),
            (m.meter(link.utilisation, kind="exposed"), link.utilisation),
            (share(link.peak_utilisation), link.peak_utilisation),
        ]
        for link in shares[:BUSIEST_LINKS]
    ]
    link_columns = [("link", "text"), ("capacity", "number"), ("carried", "number")]
    link_columns += [("use", "number"), ("peak", "number")]
    bin_text = seconds(recording.links.bin_ps * 1e-12)
    listed = m.table(link_columns, busiest, caption="Busiest links")
    return m.section(
        "links",
        "Links",
        m.table(columns, kinds, caption="Links by kind"),
        f"<details><summary>The {len(busiest)} busiest links</summary>{listed}</details>",
        intro="Bytes over what the link can reach, in the counted recorded steps; a link is one direction. "
        f"Peak: the highest mean over {bin_text}. The timeline shows each link over time.",
    )


def memory(recording: Recording) -> tuple[str, dict[str, Any]]:
    """Memory over time and what held it at the peak; curves are drawn by the page's script from the data."""
    summary = recording.summary
    found = peaks(recording.ranks)
    capacity = summary.memory_bytes
    lines = []
    for rank in summary.ranks:
        allocated, reserved = rank.peak_allocated_bytes, rank.peak_reserved_bytes
        used = reserved / capacity if capacity else None
        lines.append(
            [
                (m.text(rank.rank), rank.rank),
                (size(allocated), allocated),
                (size(reserved), reserved),
                (m.meter(used) if used is not None else "-", used or 0.0),
                "out of memory" if rank.oom else "",
            ]
        )
    columns = [("rank", "number"), ("peak allocated", "number"), ("peak reserved", "number")]
    columns += [("of the GPU", "number"), ("", "text")]
    parts, data = [], {}
    if found:
        options = [(str(rank), f"rank {rank}") for rank in found]
        parts.append(m.select("memory-rank", "Rank", options))
        parts.append(m.legend([("allocated", "allocated"), ("reserved", "reserved")]))
        parts.append(
            '<div class="canvas"><svg id="memory-curve" role="img" aria-label="Memory over time"></svg></div>'
        )
        parts += [_holders(rank, peak) for rank, peak in found.items()]
        data = {str(rank): _curve(recording, rank, peak) for rank, peak in found.items()}
    parts.append(m.table(columns, lines, caption="Peak memory of each rank"))
    intro = (
        "Allocated: handed out to tensors. Reserved: held by PyTorch's caching allocator. Time is the "
        "host's, as in PyTorch's own memory snapshots."
    )
    return m.section("memory", "Memory", *parts, intro=intro), {"capacity": capacity, "ranks": data}


def _curve(recording: Recording, rank: int, peak: Peak) -> dict[str, Any]:
    rows = memory_curve(recording.ranks[rank], peak.device)
    kept = thin(rows["allocated_bytes"], CURVE_POINTS)
    return {
        "time_s": [round(int(t) * 1e-12, 9) for t in rows["time_ps"][kept]],
        "allocated": [int(v) for v in rows["allocated_bytes"][kept]],
        "reserved": [int(v) for v in rows["reserved_bytes"][kept]],
        "peak_s": peak.time_ps * 1e-12,
    }


def _holders(rank: int, peak: Peak) -> str:
    whole = peak.allocated_bytes or 1
    parts = [
        (_kind(name), peak.by_category.get(name, 0) / whole, f"{name} {size(peak.by_category.get(name, 0))}")
        for name in CATEGORIES
    ]
    lines = [
        [
            (size(h.size_bytes), h.size_bytes),
            m.text(h.category),
            (seconds(h.since_ps * 1e-12), h.since_ps),
            m.text(h.phase),
        ]
        for h in peak.largest
    ]
    columns = [("block", "number"), ("holds", "text"), ("allocated at", "number"), ("by", "text")]
    listed = m.table(columns, lines, caption=f"Largest blocks of rank {rank} at its peak")
    title = f"Rank {rank} at its peak: {size(peak.allocated_bytes)} at {seconds(peak.time_ps * 1e-12)}"
    return (
        f'<div class="holders" data-rank="{rank}"><h3>{m.text(title)}</h3>'
        + m.stack(parts, label=f"rank {rank} at its peak")
        + m.legend([(kind, what) for kind, _, what in parts])
        + f"<details><summary>Largest blocks</summary>{listed}</details></div>"
    )


def _kind(category: str) -> str:
    return "m-" + category.replace(" ", "-")
