"""What is written when a run has ended: the timeline and report.html."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from phantom.report.links import by_kind, link_shares
from phantom.report.page import write_page
from phantom.report.waiting import detail
from phantom.timeline.recording import load
from phantom.timeline.spool import SpoolError
from phantom.timeline.write import write_timeline

TIMELINE = "timeline.pftrace"


def finish(
    out: Path,
    *,
    timeline: bool,
    tokens_per_step: int | None = None,
    samples_per_step: int | None = None,
    options: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Writes timeline (if wanted) and page, and adds to summary.json, which is returned.

    What cannot be written becomes a warning of the run. `tokens_per_step` and `samples_per_step` are the
    whole job's, as the user told them; `options` are listed under the page's configuration.
    """
    warnings: list[str] = []
    path = out / "summary.json"
    summary = json.loads(path.read_text(encoding="utf-8"))
    step_s = (summary.get("step_virtual_s") or {}).get("median")
    for name, amount in (("tokens_per_s", tokens_per_step), ("samples_per_s", samples_per_step)):
        if amount is not None and step_s:
            summary[name] = amount / step_s
    if options is not None:
        summary["options"] = {key: value for key, value in options.items() if value is not None}
    try:
        recording = load(out)
        if recording.without_record:
            names = ", ".join(map(str, recording.without_record))
            warnings.append(
                f"ranks that were ended before they had recorded anything are missing here: {names}"
            )
        shares = detail(recording)
        if shares is not None:
            summary["detail"] = shares
        if used := link_shares(recording):
            summary["links"] = by_kind(used)
        recording = replace(recording, summary=summary)
        if timeline:
            if recording.ranks:
                warnings += [text] if (text := write_timeline(recording, out / TIMELINE).warning) else []
            else:
                warnings.append("no timeline: no rank recorded anything")
        summary.setdefault("warnings", []).extend(warnings)
        write_page(recording)
    except (SpoolError, OSError, ValueError) as error:
        summary.setdefault("warnings", []).append(f"the report could not be written: {error}")
    path.write_text(json.dumps(summary, indent=1) + "\n", encoding="utf-8")
    return summary
