"""What is written when a run has ended: the timeline and report.html."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path

from msgspec.structs import replace

from phantom.launch.errors import cannot_write
from phantom.report.links import by_kind, link_shares
from phantom.report.page import PAGE, write_page
from phantom.report.waiting import detail
from phantom.results.run_summary import Scalar, Summary, to_json
from phantom.timeline.recording import Recording, load, read_summary
from phantom.timeline.spool import SpoolError
from phantom.timeline.write import write_timeline

TIMELINE = "timeline.pftrace"


def finish(
    out: Path,
    *,
    timeline: bool,
    tokens_per_step: int | None = None,
    samples_per_step: int | None = None,
    options: Mapping[str, Scalar] | None = None,
) -> Summary:
    """Writes the timeline (if asked for) and the page, and adds to summary.json, which is returned.

    What cannot be written becomes a warning of the run. `tokens_per_step` and `samples_per_step` are the
    whole job's, as the user gave them; `options` are listed under the page's configuration. Raises NoRun
    where there is no summary.json.
    """
    warnings: list[str] = []
    path = out / "summary.json"
    summary = read_summary(out)
    step_s = summary.step_virtual_s.median
    if step_s:
        tokens_per_s = tokens_per_step / step_s if tokens_per_step is not None else None
        samples_per_s = samples_per_step / step_s if samples_per_step is not None else None
        summary = replace(summary, tokens_per_s=tokens_per_s, samples_per_s=samples_per_s)
    if options is not None:
        given = {key: value for key, value in options.items() if value is not None}
        summary = replace(summary, options=given)
    recording: Recording | None = None
    try:
        recording = load(out)
        if recording.without_record:
            names = ", ".join(map(str, recording.without_record))
            warnings.append(
                f"ranks that were ended before they had recorded anything are missing here: {names}"
            )
        warnings += recording.gaps
        used = link_shares(recording)
        summary = replace(summary, detail=detail(recording), links=tuple(by_kind(used)) if used else None)
    except (SpoolError, OSError, ValueError) as error:
        warnings.append(f"the report could not be made: {error}")
        recording = None
    if recording is not None and timeline:
        warnings += _timeline(recording, out / TIMELINE)
    summary = summary.warned(*warnings)
    if recording is not None:
        try:
            write_page(dataclasses.replace(recording, summary=summary))
        except (SpoolError, ValueError) as error:
            summary = summary.warned(f"the report could not be made: {error}")
        except OSError as error:
            summary = summary.warned(f"no report: {cannot_write(error, out / PAGE)}")
    try:
        write_summary(path, summary)
    except OSError as error:
        summary = summary.warned(
            f"{path} lacks what the report adds: it could not be written again: {error.strerror}"
        )
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


def write_summary(path: Path, summary: Summary) -> None:
    """Writes summary.json; where that fails (a full disk) an earlier one stays as it is. Raises OSError."""
    part = path.with_name(path.name + ".part")
    try:
        part.write_text(to_json(summary, indent=1) + "\n", encoding="utf-8")
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
