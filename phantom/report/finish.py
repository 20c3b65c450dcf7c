"""What is written when a run has ended: the timeline and report.html."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from phantom.launch.errors import cannot_write
from phantom.report.links import by_kind, link_shares
from phantom.report.page import PAGE, write_page
from phantom.report.waiting import detail
from phantom.timeline.recording import Recording, load
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
    recording: Recording | None = None
    try:
        recording = load(out)
        if recording.without_record:
            names = ", ".join(map(str, recording.without_record))
            warnings.append(
                f"ranks that were ended before they had recorded anything are missing here: {names}"
            )
        warnings += recording.gaps
        shares = detail(recording)
        if shares is not None:
            summary["detail"] = shares
        if used := link_shares(recording):
            summary["links"] = by_kind(used)
    except (SpoolError, OSError, ValueError) as error:
        warnings.append(f"the report could not be made: {error}")
        recording = None
    if recording is not None and timeline:
        warnings += _timeline(recording, out / TIMELINE)
    summary.setdefault("warnings", []).extend(warnings)
    if recording is not None:
        try:
            write_page(replace(recording, summary=summary))
        except (SpoolError, ValueError) as error:
            summary["warnings"].append(f"the report could not be made: {error}")
        except OSError as error:
            summary["warnings"].append(f"no report: {cannot_write(error, out / PAGE)}")
    try:
        write_summary(path, summary)
    except OSError as error:
        text = f"{path} lacks what the report adds: it could not be written again: {error.strerror}"
        summary.setdefault("warnings", []).append(text)
    return summary


def _timeline(recording: Recording, path: Path) -> list[str]:
    """Writes the timeline; the warnings."""
    if not recording.ranks:
        return ["no timeline: no rank recorded anything"]
    try:
        warning = write_timeline(recording, path).warning
    except ValueError as error:
        return [f"no timeline: {error}"]
    except OSError as error:
        return [f"no timeline: {cannot_write(error, path)}"]
    return [warning] if warning else []


def write_summary(path: Path, summary: Mapping[str, Any]) -> None:
    """Writes summary.json; where that fails (a full disk) an earlier one stays as it is. Raises OSError."""
    part = path.with_name(path.name + ".part")
    try:
        part.write_text(json.dumps(summary, indent=1) + "\n", encoding="utf-8")
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
