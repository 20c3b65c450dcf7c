"""Sections of the page about time: steps, ranks, the picture of ranks over time, the critical path."""

from __future__ import annotations

from typing import Any

from phantom.report import markup as m
from phantom.report.critical_path import COMMUNICATION, COMPUTE, critical_path, shares
from phantom.report.overview import strips
from phantom.report.waiting import by_rank
from phantom.results.run_summary import Summary
from phantom.terminal.units import count, many, seconds, share
from phantom.timeline.recording import Recording

PATH_ROWS = 20
PARTS = (
    ("compute", "compute"),
    ("transfer", "exposed transfer"),
    ("waiting", "waiting for other ranks"),
    ("idle", "idle"),
)

NO_STEP = "<p>No step was complete.</p>"


def steps(summary: Summary) -> str:
    """The steps as bars."""
    rows = summary.steps
    if not rows:
        return m.section("steps", "Steps", "<p>No step was seen: no torch.optim optimizer was stepped.</p>")
    longest = max(row.virtual_s for row in rows) or 1.0
    shown = rows if len(rows) <= 60 else rows[:: -(-len(rows) // 60)]
    bars = "".join(
        f'<span style="height:{max(row.virtual_s / longest * 100, 1):.2f}%" '
        f'title="step {row.index}: {seconds(row.virtual_s)}"></span>'
        for row in shown
    )
    picture = f'<div class="columns" role="img" aria-label="Time of each step">{bars}</div>'
    lines = [[(m.text(row.index), row.index), (seconds(row.virtual_s), row.virtual_s)] for row in rows[:500]]
    listed = m.table([("step", "number"), ("time", "number")], lines, caption="Time of each step")
    return m.section(
        "steps",
        "Steps",
        picture,
        f"<details><summary>Times of {many(len(rows), 'step')}</summary>{listed}</details>",
        intro="A step ends when the last rank's device has finished it. Step 0 counts from the first kernel.",
    )


def ranks(recording: Recording) -> str:
    """Where each rank's time went."""
    summary = recording.summary
    if not summary.steps:
        return m.section("ranks", "Step breakdown per rank", NO_STEP)
    split = by_rank(recording)
    lines: list[list[Any]] = []
    for rank in summary.ranks:
        number = rank.rank
        values = [rank.compute_s, rank.exposed_communication_s, rank.idle_s]
        total = sum(values) or 1.0
        row = split.get(number)
        if row is not None and row.total_ps:
            parts = [row.compute_ps, row.transfer_ps, row.waiting_ps, row.idle_ps]
            portions = [part / row.total_ps for part in parts]
        else:
            portions = [values[0] / total, values[1] / total, 0.0, values[2] / total]
        said = [(kind, part, f"{name} {share(part)}") for (kind, name), part in zip(PARTS, portions)]
        lines.append(
            [
                (m.text(number), number),
                (m.stack(said, label=f"rank {number}"), portions[0]),
                *((f"{seconds(v)} <small>{share(v / total)}</small>", v) for v in values),
            ]
        )
    columns = [("rank", "number"), ("share of its time", "bar"), ("compute", "number")]
    columns += [("exposed communication", "number"), ("idle", "number")]
    waits = "" if split else " Waiting and transfer are shown as one, because no detail was recorded."
    return m.section(
        "ranks",
        "Step breakdown per rank",
        m.legend([entry for entry in PARTS if split or entry[0] != "waiting"]),
        m.table(columns, lines, caption="Step breakdown per rank"),
        intro="Compute: a kernel runs. Exposed communication: only communication runs or waits. Idle: "
        "neither. "
        "They add up to the rank's time exactly. Sums are over the counted steps (all but the first)."
        + waits,
    )


def overview(recording: Recording) -> tuple[str, dict[str, Any]]:
    """The picture of ranks over the time of a step, drawn by the page's script from the returned data."""
    indices = recording.step_indices
    if not indices:
        text = f"<p>No step was recorded whole ({m.text(recording.extent)}).</p>"
        if not recording.summary.steps:
            text = NO_STEP
        return m.section("overview", "Ranks over time", text), {}
    data = {}
    for index in indices[-4:]:
        begin_ps, end_ps = recording.step_bounds_ps(index)
        rows = [[rank, line] for rank, line in strips(recording, index).items()]
        data[str(index)] = {
            "begin_s": begin_ps * 1e-12,
            "length_s": (end_ps - begin_ps) * 1e-12,
            "rows": rows,
        }
    options = [(key, f"step {key}") for key in reversed(data)]
    picture = (
        '<div class="canvas"><canvas id="overview-canvas" tabindex="0" role="img" '
        'aria-label="What each rank does over the step; arrow keys move the cursor"></canvas></div>'
        '<p id="overview-said" class="said" aria-live="polite">Point at it or use the arrow keys.</p>'
    )
    legend = m.legend(PARTS)
    body = m.select("overview-step", "Step", options) + legend + picture
    intro = "Each row is a rank, time runs to the right; a column shows what fills most of its slice of time."
    return m.section("overview", "Ranks over time", body, intro=intro), data


def path(recording: Recording) -> str:
    """What the length of a step consists of."""
    indices = recording.step_indices
    if not indices:
        return ""
    step = indices[-1]
    begin_ps, end_ps = recording.step_bounds_ps(step)
    whole = (end_ps - begin_ps) or 1
    segments = critical_path(recording, step)
    found = shares(segments)
    by_kind = {kind: sum(s.total_ps for s in found if s.kind == kind) for kind in (COMPUTE, COMMUNICATION)}
    host_ps = whole - sum(by_kind.values()) if segments else 0
    parts = [
        ("compute", by_kind[COMPUTE] / whole, f"kernels {share(by_kind[COMPUTE] / whole)}"),
        ("exposed", by_kind[COMMUNICATION] / whole, f"communication {share(by_kind[COMMUNICATION] / whole)}"),
        ("idle", host_ps / whole, f"waiting for the host {share(host_ps / whole)}"),
    ]
    lines = [
        [
            m.text(s.kind),
            m.code(s.name),
            (count(s.count), s.count),
            (seconds(s.total_ps * 1e-12), s.total_ps),
            (m.meter(s.total_ps / whole, kind=_COLOUR[s.kind]), s.total_ps),
        ]
        for s in found[:PATH_ROWS]
    ]
    columns = [("kind", "text"), ("what", "text"), ("pieces", "number"), ("time", "number")]
    columns.append(("share of the step", "number"))
    visited = sorted({segment.rank for segment in segments})
    ranks = ", ".join(map(str, visited[:12])) + (" …" if len(visited) > 12 else "")
    note = f"It runs over rank{'s' if len(visited) != 1 else ''} {ranks} in {many(len(segments), 'piece')}."
    return m.section(
        "path",
        f"Critical path of step {step}",
        f"<p>{m.text(note)}</p>",
        m.stack(parts, label="critical path"),
        m.legend([(kind, what) for kind, _, what in parts]),
        m.table(columns, lines, caption="Critical path by work"),
        intro="The chain of work that the step's length consists of, followed back from its end; it adds "
        "up to the step exactly. Making anything else faster does not make the step shorter.",
    )


_COLOUR = {COMPUTE: "compute", COMMUNICATION: "exposed", "host": "idle"}
