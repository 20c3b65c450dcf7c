"""Puts report.html together: one file, no request to anywhere."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path

from phantom.report import markup as m
from phantom.report import time_sections, work_sections
from phantom.report.memory_report import oom_report
from phantom.results.run_summary import Summary, plain
from phantom.terminal.figures import job_line, time_parts
from phantom.terminal.figures import rows as figure_rows
from phantom.terminal.units import count, seconds, share, size
from phantom.timeline.recording import Recording

PAGE = "report.html"
# The browser itself forbids what the page must not do: load anything from anywhere.
POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"

SECTIONS = (
    ("figures", "Result"),
    ("ranks", "Ranks"),
    ("overview", "Over time"),
    ("path", "Critical path"),
    ("kernels", "Kernels"),
    ("collectives", "Collectives"),
    ("links", "Links"),
    ("memory", "Memory"),
    ("steps", "Steps"),
    ("warnings", "Warnings"),
    ("configuration", "Configuration"),
)


def _cards(summary: Summary) -> str:
    ranks, parts = summary.ranks, time_parts(summary)
    total = sum(parts)
    cards = [("step time", seconds(summary.step_virtual_s.median), "median of the counted steps")]
    if summary.tokens_per_s is not None:
        cards.append(("tokens/s", count(summary.tokens_per_s), "whole job"))
    if summary.mfu is not None:
        cards.append(("MFU", share(summary.mfu), "model FLOP/s of the GPUs' peak"))
    if total > 0:
        names = ("compute", "exposed communication", "idle")
        cards += [(name, share(part / total), "of all ranks' time") for name, part in zip(names, parts)]
    if summary.detail is not None and summary.detail.bubble is not None:
        cards.append(("pipeline bubble", share(summary.detail.bubble), "waiting in messages, or idle"))
    if ranks:
        peak = max(rank.peak_reserved_bytes for rank in ranks)
        capacity = summary.memory_bytes
        cards.append(
            ("peak memory", size(peak), f"reserved, of {size(capacity)}" if capacity else "reserved")
        )
    inner = "".join(
        f'<div class="card"><dt>{m.text(name)}</dt>'
        f"<dd>{m.text(value)}<small>{m.text(note)}</small></dd></div>"
        for name, value, note in cards
    )
    return f'<dl class="cards">{inner}</dl>'


def _figures(summary: Summary) -> str:
    lines = [[m.text(label.strip()), m.text(value)] for label, value in figure_rows(summary)]
    columns = [("figure", "text"), ("value", "text")]
    listed = m.table(columns, lines, caption="Key figures", sortable=False)
    # After an out-of-memory error the simulator itself only saw ranks go away.
    reason = oom_report(summary) if summary.status == "oom" else ""
    if not reason and summary.failure is not None:
        reason = summary.failure.message
    alert = f'<pre class="alert">{m.text(reason)}</pre>' if reason else ""
    return m.section(
        "figures",
        "Result",
        alert,
        _cards(summary),
        f"<details><summary>All figures</summary>{listed}</details>",
    )


def _warnings(recording: Recording) -> str:
    summary = recording.summary
    texts = [*summary.warnings, *(gap for gap in recording.gaps if gap not in summary.warnings)]
    warnings = [f"<li>{m.text(text)}</li>" for text in texts]
    parts = [f"<ul>{''.join(warnings)}</ul>" if warnings else "<p>None.</p>"]
    reads = summary.unknown_value_reads
    if reads:
        rows = [[m.code(r.where), (count(r.count), r.count)] for r in reads]
        columns = [("read of a value that was never computed", "text"), ("times", "number")]
        parts.append(m.table(columns, rows, caption="Reads of unknown values"))
    return m.section("warnings", "Warnings", *parts)


def _configuration(summary: Summary) -> str:
    rows = [["command", m.code(" ".join(summary.command))]]
    for key in ("cluster", "nodes", "gpus_per_node", "world_size", "status", "wall_s", "schema"):
        if getattr(summary, key) is not None:
            rows.append([m.text(key), m.text(getattr(summary, key))])
    if summary.gpu is not None:
        rows.append(["gpu", m.text(summary.gpu.name)])
    for key, value in plain(summary.simulator).items() if summary.simulator is not None else ():
        rows.append([m.text(f"simulator.{key}"), m.text(value)])
    for key, value in (summary.options or {}).items():
        rows.append([m.text(f"option {key}"), m.text(value)])
    columns = [("name", "text"), ("value", "text")]
    return m.section(
        "configuration", "Configuration", m.table(columns, rows, caption="Configuration", sortable=False)
    )


def render(recording: Recording) -> str:
    """The page as text."""
    summary = recording.summary
    overview, overview_data = time_sections.overview(recording)
    memory, memory_data = work_sections.memory(recording)
    body = [
        _figures(summary),
        time_sections.ranks(recording),
        overview,
        time_sections.path(recording),
        work_sections.kernels(summary),
        work_sections.collectives(summary),
        work_sections.links(recording),
        memory,
        time_sections.steps(summary),
        _warnings(recording),
        _configuration(summary),
    ]
    there = [(anchor, name) for anchor, name in SECTIONS if any(f'id="{anchor}"' in part for part in body)]
    links = "".join(f'<a href="#{anchor}">{m.text(name)}</a>' for anchor, name in there)
    # "</" would end the script element early.
    data = json.dumps({"overview": overview_data, "memory": memory_data}).replace("</", "<\\/")
    resources = files("phantom.report")
    style = (resources / "page.css").read_text(encoding="utf-8")
    script = (resources / "page.js").read_text(encoding="utf-8")
    command = " ".join(summary.command)
    status = summary.status
    job = job_line(summary)
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{POLICY}">
<link rel="icon" href="data:,">
<title>Phantom: {m.text(command)}</title>
<style>{style}</style>
</head>
<body>
<a class="skip" href="#main">Skip to the result</a>
<header>
<div class="title"><h1>Phantom run</h1><span class="status {m.text(status)}">{m.text(status)}</span>
<button type="button" id="theme" aria-label="Switch between light and dark">◐</button></div>
<p class="job">{m.text(job)}</p>
<p class="command">{m.code(command)}</p>
<nav aria-label="Sections">{links}</nav>
</header>
<main id="main" tabindex="-1">
{"".join(body)}
</main>
<footer>Simulated times, not measured ones. What is not modelled: docs/not-modelled.md.</footer>
<script id="data" type="application/json">{data}</script>
<script>{script}</script>
</body>
</html>
"""


def write_page(recording: Recording, path: Path | None = None) -> Path:
    """Writes the page (RUN_DIR/report.html by default) and returns its path."""
    path = path or recording.folder / PAGE
    path.write_text(render(recording), encoding="utf-8")
    return path
