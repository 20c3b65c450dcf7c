"""What a finished run amounts to: its exit status, its summary and what the user is told."""

from __future__ import annotations

import signal
from dataclasses import dataclass

from msgspec import structs

from netsim.outside import printable
from phantom.launch.options import RunOptions
from phantom.launch.plan import Job
from phantom.launch.supervisor import Outcome
from phantom.results.run_summary import Status, Summary
from phantom.wire.fields import AbortKind

OK, USAGE, DEADLOCK, SIMULATOR = 0, 2, 3, 4


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The exit status (docs/running.md), the summary, and messages for the user, worst first."""

    status: int
    summary: Summary
    messages: tuple[str, ...] = ()


def judge(
    *,
    options: RunOptions,
    job: Job,
    outcome: Outcome,
    summary: Summary | None,
    partial: Summary | None = None,
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
    result = summary or partial or _empty(options, job)
    command = tuple(printable(word) for word in options.command)
    result = structs.replace(result, command=command, wall_s=round(wall_s, 3))
    known = result.status
    if orphans:
        result = result.warned(
            f"{orphans} process{'es' if orphans > 1 else ''} of the job still ran at its end; stopped"
        )
    if outcome.was_interrupted:
        assert outcome.interrupted is not None
        stuck = f" ({outcome.stuck})" if outcome.stuck else ""
        name = signal.Signals(outcome.interrupted).name
        messages.append(f"interrupted by {name}{stuck}; the summary holds the steps so far")
        if trouble is not None:
            messages.append(trouble)
        return _verdict(128 + outcome.interrupted, result, messages, status="interrupted")
    if trouble is not None:
        messages.append(f"the simulator failed: {trouble}")
        return _verdict(SIMULATOR, result.warned(messages[-1]), messages, status="failed")
    if outcome.agent_gone is not None:
        messages.append(
            f"the process that starts the ranks ended, and they with it ({outcome.agent_gone}); the summary "
            f"holds the steps so far"
        )
        return _verdict(SIMULATOR, result.warned(messages[-1]), messages, status="failed")
    aborted = outcome.aborted
    # How a lost peer ended says more than that it is lost; a launcher hides which rank it was.
    known_peer = outcome.failure is not None and outcome.failure.rank is not None
    if aborted is not None and not (aborted.kind is AbortKind.peer_lost and known_peer):
        messages.append(f"{aborted.kind}: {aborted.message}")
    if aborted is not None and aborted.kind is AbortKind.protocol:
        return _verdict(SIMULATOR, result, messages, status="failed")
    if known == "deadlock" or (aborted is not None and aborted.kind is AbortKind.deadlock):
        return _verdict(DEADLOCK, result, messages, status="deadlock")
    failure = outcome.failure
    if failure is not None:
        messages.insert(0, failure.describe())
        if outcome.lost is not None:
            messages.insert(0, outcome.lost)
            result = result.warned(outcome.lost)
        if not attached:
            messages.append("no process of the job had imported torch under phantom by then")
        return _verdict(failure.exit_status, result, messages, status="failed" if known == "ok" else known)
    if not attached or ranks_seen == 0:
        messages.append(_nothing_simulated(options, attached=attached))
        return _verdict(USAGE, result.warned(messages[-1]), messages, status="failed")
    if ranks_seen < job.world_size:
        result = result.warned(
            f"only {ranks_seen} of {job.world_size} ranks used the device or joined a process group; "
            f"give -N and -G that fit the command"
        )
    if known != "ok":
        messages.append(f"the simulator reports status {known}")
    return _verdict(OK if known == "ok" else 1, result, messages, status=known)


def _verdict(exit_status: int, summary: Summary, messages: list[str], *, status: Status) -> Verdict:
    return Verdict(
        status=exit_status, summary=structs.replace(summary, status=status), messages=tuple(messages)
    )


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
        + (
            "; give --launch node for a script that starts its own processes"
            if options.launch is None
            else ""
        )
    )


def _empty(options: RunOptions, job: Job) -> Summary:
    return Summary(cluster=printable(options.cluster), world_size=job.world_size, nodes=job.nodes)
