"""Runs a job for real and notes its steps: `phantom record`."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from interpose import environment
from phantom.launch import interpreter as interpreters
from phantom.launch.command import ONCE, Command, parse
from phantom.launch.errors import PhantomError, UsageError
from phantom.launch.plan import PlannedProcess, plan, size_job

SCHEMA = 1
_GRACE_S = 5.0
_POLL_S = 0.02


class JobFailed(PhantomError):
    """The job ended with a status other than 0, which is ours too."""

    def __init__(self, text: str, status: int) -> None:
        super().__init__(text)
        self.status = status


@dataclass(frozen=True, kw_only=True)
class RecordOptions:
    """One `phantom record`: ranks on this machine, when to stop, which steps to trace (inclusive)."""

    command: tuple[str, ...]
    ranks: int = 1
    steps: int | None = None
    threads: int = 1
    trace_file: Path | None = None
    trace: tuple[int, int] = (2, 4)


def record(options: RecordOptions) -> dict[str, Any]:
    """Runs the job and returns its measured steps, as `phantom compare --real` reads them.

    {"schema", "command", "world_size", "device", "torch", "threads",
     "steps": [{"index", "real_s", "cpu_s"}]};
    `real_s` in seconds from the slowest rank's end of the step before to its end of this one, `cpu_s` the
    CPU time that rank 0's process used meanwhile. Step 0 has no begin and is left out. Raises UsageError,
    JobFailed.
    """
    command = parse(options.command)
    _prepare(command)
    job = size_job(command, nodes=1, gpus_per_node=options.ranks, cluster_gpus=max(options.ranks, 1))
    with tempfile.TemporaryDirectory(prefix="phantom-record-") as folder:
        out = Path(folder)
        (out / "ranks").mkdir()
        started = [_start(process, options, out) for process in plan(job, variables={}, out=out, fork=False)]
        status = _wait(started)
        if status != 0:
            raise JobFailed(f"the job failed with status {status}", status)
        result = combine([json.loads(path.read_text()) for path in sorted(out.glob("rank-*.json"))])
        if options.trace_file is not None:
            trace = out / "trace.json"
            if not trace.exists():
                raise UsageError(
                    f"no trace was recorded: the job made {len(result['steps']) + 1} steps, "
                    f"the trace is of steps {options.trace[0]} to {options.trace[1]}"
                )
            shutil.copyfile(trace, options.trace_file)
            for step in result["steps"]:
                step["traced"] = options.trace[0] <= step["index"] <= options.trace[1]
    return {**result, "command": list(options.command)}


def combine(ranks: list[dict[str, Any]]) -> dict[str, Any]:
    """Puts the steps of all ranks of this machine together. Raises UsageError where there are none."""
    if not ranks:
        raise UsageError(
            "no step was seen: no process of the job ran a torch.optim optimizer step, or it ran under an "
            "interpreter without phantom's hook"
        )
    ranks = sorted(ranks, key=lambda rank: int(rank["rank"]))
    ends = [{int(i): (int(wall), int(cpu)) for i, wall, cpu in rank["ends_ns"]} for rank in ranks]
    common = sorted(set.intersection(*(set(rank) for rank in ends)))
    # CLOCK_MONOTONIC is one clock for all processes of a machine.
    last = {index: max(rank[index][0] for rank in ends) for index in common}
    steps = [
        {
            "index": index,
            "real_s": (last[index] - last[index - 1]) / 1e9,
            "cpu_s": (ends[0][index][1] - ends[0][index - 1][1]) / 1e9,
        }
        for index in common
        if index - 1 in last
    ]
    if not steps:
        raise UsageError("only one step was seen; a step is timed from the end of the one before: run more")
    first = ranks[0]
    return {
        "schema": SCHEMA,
        "world_size": int(first["world_size"]),
        "device": first["device"],
        "torch": first["torch"],
        "threads": first["threads"],
        "steps": steps,
    }


def _prepare(command: Command) -> None:
    """The hook in the job's interpreter; what cannot be known from the command is the user's to prepare."""
    if command.python is None:
        if command.launch == ONCE:
            return
        raise UsageError(
            f"{command.argv[0]}: its interpreter is not known; give a Python command, torchrun or mpirun"
        )
    found = interpreters.own() if command.python == "" else interpreters.probe(command.python)
    wrong = interpreters.problems(found)
    if wrong:
        raise UsageError("the job's interpreter cannot be recorded:\n  " + "\n  ".join(wrong))
    interpreters.install_hook(found)


def _start(process: PlannedProcess, options: RecordOptions, folder: Path) -> subprocess.Popen[bytes]:
    from interpose.startup import recorder

    threads = str(options.threads)
    env = {
        **process.env,
        environment.ATTACH: recorder.MODE,
        recorder.FOLDER: str(folder),
        "OMP_NUM_THREADS": threads,
        "MKL_NUM_THREADS": threads,
    }
    env.pop(environment.NODE_LOG, None)
    if options.steps is not None:
        env[recorder.STEPS] = str(options.steps)
    if options.trace_file is not None:
        env[recorder.TRACE] = f"{options.trace[0]}:{options.trace[1]}"
    quiet = process.rank not in (0, None)
    output = subprocess.DEVNULL if quiet else None
    return subprocess.Popen(
        process.args, env=env, stdin=subprocess.DEVNULL, stdout=output, start_new_session=True
    )


def _wait(started: list[subprocess.Popen[bytes]]) -> int:
    """Waits for all; when one fails, or at Ctrl-C, the others are ended. Returns the first one's status."""
    try:
        running = list(started)
        while running:
            for process in list(running):
                status = process.poll()
                if status is None:
                    continue
                running.remove(process)
                if status != 0:
                    return status if status > 0 else 128 - status
            time.sleep(_POLL_S)
        return 0
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    finally:
        _end(started)


def _end(started: list[subprocess.Popen[bytes]]) -> None:
    for number, grace_s in ((signal.SIGTERM, _GRACE_S), (signal.SIGKILL, _GRACE_S)):
        running = [process for process in started if process.poll() is None]
        for process in running:
            os.killpg(process.pid, number)
        deadline_s = time.monotonic() + grace_s
        while any(p.poll() is None for p in running) and time.monotonic() < deadline_s:
            time.sleep(_POLL_S)
