"""What a finished run amounts to: its exit status, its summary and what the user is told."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from typing import Any

from phantom.launch.options import RunOptions
from phantom.launch.plan import Job
from phantom.launch.supervisor import Outcome
from phantom.wire.fields import AbortKind

OK, USAGE, DEADLOCK, SIMULATOR = 0, 2, 3, 4


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The exit status of contract.md, `summary.json` as a map, and messages for the user, worst first."""

    status: int
    summary: dict[str, Any]
    messages: tuple[str, ...] = ()


def judge(
    *,
    options: RunOptions,
    job: Job,
    outcome: Outcome,
    summary: dict[str, Any] | None,
    partial: dict[str, Any] | None = None,
    trouble: str | None,
    attached: bool,
    ranks_seen: int,
    orphans: int,
    wall_s: float,
) -> Verdict:
    """Settles how the run went.

    `summary`: the simulator's, None where it could not give one; `trouble`: why; `partial`: the last one
    before that. `attached`: some process of the job saw the virtual device; `ranks_seen`: how many became
    ranks.
    `orphans`: processes that had to be ended afterwards.
    """
    messages: list[str] = []
    result = dict(summary or partial or _empty(options, job))
    result.setdefault("schema", 1)
    result["command"] = list(options.command)
    result["wall_s"] = round(wall_s, 3)
    warnings = result.setdefault("warnings", [])
    known = result.get("status", "failed")
    if orphans:
        warnings.append(f"{orphans} processes of the job were still running at its end and were stopped")
    if outcome.was_interrupted:
        assert outcome.interrupted is not None
        result["status"] = "interrupted"
        stuck = f" ({outcome.stuck})" if outcome.stuck else ""
        name = signal.Signals(outcome.interrupted).name
        messages.append(f"interrupted by {name}{stuck}; the summary holds the steps so far")
        if trouble is not None:
            messages.append(trouble)
        return Verdict(status=128 + outcome.interrupted, summary=result, messages=tuple(messages))
    if trouble is not None:
        result["status"] = "failed"
        messages.append(f"the simulator failed: {trouble}")
        warnings.append(messages[-1])
        return Verdict(status=SIMULATOR, summary=result, messages=tuple(messages))
    if outcome.agent_gone is not None:
        result["status"] = "failed"
        messages.append(
            f"the process that starts the ranks ended, and they with it ({outcome.agent_gone}); the summary "
            f"holds the steps so far"
        )
        warnings.append(messages[-1])
        return Verdict(status=SIMULATOR, summary=result, messages=tuple(messages))
    aborted = outcome.aborted
    # A lost peer is told by how its process ended, where that is known; a launcher hides which rank it was.
    known_peer = outcome.failure is not None and outcome.failure.rank is not None
    if aborted is not None and not (aborted.kind is AbortKind.peer_lost and known_peer):
        messages.append(f"{aborted.kind}: {aborted.message}")
    if aborted is not None and aborted.kind is AbortKind.protocol:
        result["status"] = "failed"
        return Verdict(status=SIMULATOR, summary=result, messages=tuple(messages))
    if known == "deadlock" or (aborted is not None and aborted.kind is AbortKind.deadlock):
        result["status"] = "deadlock"
        return Verdict(status=DEADLOCK, summary=result, messages=tuple(messages))
    failure = outcome.failure
    if failure is not None:
        if known == "ok":
            result["status"] = "failed"
        messages.insert(0, failure.describe())
        if outcome.lost is not None:
            messages.insert(0, outcome.lost)
            warnings.append(outcome.lost)
        if not attached:
            messages.append("no process of the job had imported torch under phantom by then")
        return Verdict(status=failure.exit_status, summary=result, messages=tuple(messages))
    if not attached or ranks_seen == 0:
        result["status"] = "failed"
        messages.append(_nothing_simulated(options, attached=attached))
        warnings.append(messages[-1])
        return Verdict(status=USAGE, summary=result, messages=tuple(messages))
    if ranks_seen < job.world_size:
        warnings.append(
            f"only {ranks_seen} of {job.world_size} ranks used the device or joined a process group; "
            f"give -N and -G that fit the command"
        )
    if known != "ok":
        messages.append(f"the simulator reports status {known}")
    return Verdict(status=OK if known == "ok" else 1, summary=result, messages=tuple(messages))


def _nothing_simulated(options: RunOptions, *, attached: bool) -> str:
    if not attached:
        return (
            "no process of the job was attached, so nothing was simulated: either it never "
            "imported torch, or it ran under an interpreter without phantom's hook "
            "(check it with: phantom doctor --python PATH)"
        )
    return (
        "the job imported torch but no process became a rank, so nothing was simulated: none used a CUDA "
        "device or called init_process_group with RANK set"
        + ("; a script that starts its own processes wants --launch node" if options.launch is None else "")
    )


def _empty(options: RunOptions, job: Job) -> dict[str, Any]:
    return {
        "schema": 1,
        "command": list(options.command),
        "cluster": options.cluster,
        "world_size": job.world_size,
        "nodes": job.nodes,
        "status": "failed",
        "steps": [],
        "step_virtual_s": {},
        "ranks": [],
        "coverage": {},
        "unpriced_ops": [],
        "unknown_value_reads": [],
        "collectives": [],
        "warnings": [],
    }
