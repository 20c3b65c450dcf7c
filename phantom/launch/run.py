"""One `phantom run` from the checked options to the exit status."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import shutil
import socket
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from msgspec.structs import replace as replace_parts

from interpose import environment
from interpose.standins import registry
from interpose.startup import pth
from netsim.cluster import load_cluster
from netsim.errors import NetsimError
from netsim.outside import OutsideError, printable
from phantom.launch import moe_routing, orphans, outdir
from phantom.launch.agent import Agent
from phantom.launch.command import ONCE, parse
from phantom.launch.errors import PhantomError, SimulatorError, UsageError, cannot_write
from phantom.launch.logs import Follower
from phantom.launch.node_messages import NodeJob
from phantom.launch.nodes import NodeAgents
from phantom.launch.options import RunOptions
from phantom.launch.plan import Job, PlannedProcess, plan, size_job
from phantom.launch.preparation import prepare_interpreter
from phantom.launch.signals import Interrupted, Signals
from phantom.launch.simulator import SimulatorClient, SimulatorProcess
from phantom.launch.supervisor import Outcome, Supervisor
from phantom.launch.tokens import own_token, server_token
from phantom.launch.verdict import SIMULATOR, Verdict, judge
from phantom.report import finish as report
from phantom.results.run_summary import Summary, summary_from
from phantom.serve.config import cluster_digest
from phantom.serve.recorder import FILE as COLLECTIVES
from phantom.serve.server import KERNELS_FILE as KERNELS
from phantom.terminal.progress import Progress
from phantom.timeline.settings import parse_ranks, parse_steps, spool_config
from phantom.wire import token as tokens
from phantom.wire.messages import CloseJob, JobOpened, OpenJob

ENVIRONMENT_PREFIXES = ("NCCL_", "TORCH_NCCL_", "PYTORCH_", "CUDA_")
"""Variables of the job that the simulator is told: they change what NCCL and the allocator do."""


class Run:
    """Holds what has to be ended again, in order, whatever happens."""

    def __init__(self, options: RunOptions) -> None:
        self._options = options
        self._started_s = time.monotonic()
        self._events: queue.SimpleQueue[tuple[str, Any]] = queue.SimpleQueue()
        self._progress = Progress(enabled=not options.quiet)
        self._agent: Agent | NodeAgents | None = None
        self._simulator: SimulatorProcess | None = None
        self._client: SimulatorClient | None = None
        self._state: Path | None = None
        self._recording = False
        self._token = ""  # admits nodes to this run
        self._server_token = ""
        self._partial: Summary | None = None
        self._interrupted = threading.Event()
        self._moe_routing = moe_routing.MoeRouting()
        self._recorded: tuple[tuple[int, int] | None, list[int] | None] = (None, None)
        self.out: Path | None = None

    def execute(self) -> Verdict:
        """Runs the job.

        Raises UsageError or SimulatorError before it starts; once it runs, the verdict says how it ended.
        """
        options = self._options
        self._moe_routing = moe_routing.parse(options.moe_routing)
        command = parse(options.command, launch=options.launch)
        _check_stand_ins(options.stand_ins)
        job = size_job(command, nodes=options.nodes, gpus_per_node=options.gpus_per_node,
                       cluster_gpus=cluster_gpus(options.cluster))  # fmt: skip
        self._recorded = _recorded(options, job)
        if options.store is not None and not options.store.exists() and options.kernels != "measure":
            self._say(f"--store {options.store} does not exist: no kernel's cost is taken from it")
        remote = options.await_nodes is not None
        if remote and command.launch == ONCE and job.nodes > 1:
            raise UsageError(
                f"{command.argv[0]} is started once, on one node, and cannot reach the others (-N "
                f"{job.nodes}); use one that is started once per node: torchrun, accelerate, deepspeed, a "
                f"shell script"
            )
        fork = not remote and prepare_interpreter(command, say=self._say, verbose=options.verbose)
        self._token = own_token(options)
        self.out = outdir.create(options.out)
        with Signals(self._events, self._interrupted) as signals:
            try:
                return self._run(job, fork=fork)
            except SimulatorError:
                if signals.first is not None:  # the call was cut short
                    raise Interrupted(signals.first) from None
                raise
            finally:
                self._end()

    def _say(self, text: str) -> None:
        if not self._options.quiet:
            self._progress.clear()
            sys.stderr.write(f"phantom: {text}\n")
            sys.stderr.flush()

    def _run(self, job: Job, *, fork: bool) -> Verdict:
        options, out = self._options, self.out
        assert out is not None
        self._progress.phase("starting the simulator")
        self._agent = self._make_agent(job, fork=fork)
        address = self._start_simulator(out)
        self._client = SimulatorClient(address, self._server_token, hurried=self._interrupted.is_set)
        self._client.wait_until_ready()
        opened = self._client.open_job(self._job_message(job))
        self._recording = opened.recording
        self._client.watch(self._events)
        self._state = out / ".state"
        self._state.mkdir()
        variables = self._variables(job, opened, address)
        remote = options.await_nodes is not None
        processes = plan(job, variables=variables, out=out, fork=fork, hosts_are_real=remote)
        self._progress.phase("importing torch" if fork else "starting the job")
        self._agent.environment(variables)
        self._wait_for_agent()
        self._agent.start(processes)
        supervisor = Supervisor(
            agent=self._agent,
            simulator=self._simulator,
            client=self._client,
            processes=processes,
            events=self._events,
            follower=self._follower(processes),
            progress=self._progress,
            quiet=options.quiet,
            keep=self._keep,
        )
        outcome = supervisor.run()
        return self._conclude(job, outcome)

    def _make_agent(self, job: Job, *, fork: bool) -> Agent | NodeAgents:
        options = self._options
        assert self.out is not None
        if options.await_nodes is None:
            return Agent(events=self._events, log=self.out / "launch.log", preload=fork, cwd=Path.cwd())
        described = NodeJob(
            command=list(options.command),
            launch=options.launch,
            nodes=job.nodes,
            gpus_per_node=job.gpus_per_node,
            ranks_per_node=job.ranks_per_node,
            out=str(self.out),
        )
        agents = NodeAgents(
            listen=options.await_nodes,
            count=job.nodes,
            job=described,
            events=self._events,
            say=self._say,
            token=self._token,
        )
        self._say(f"waiting for {job.nodes} nodes at {options.await_nodes}")
        if options.token_file is None and not os.environ.get(tokens.VARIABLE):
            self._say(f"the nodes join with {tokens.VARIABLE}={self._token}")
        return agents

    def _start_simulator(self, out: Path) -> str:
        options = self._options
        if options.server is not None:
            self._server_token = server_token(options, options.server)
            return options.server
        arguments = ["--cluster", options.cluster, "--kernels", options.kernels, "--seed", str(options.seed)]
        if options.store is not None:
            arguments += ["--store", str(options.store)]
        if not options.network_lookahead:
            arguments += ["--network-lookahead", "off"]
        # Nodes elsewhere reach the simulator as they reach this run.
        host = options.await_nodes.rpartition(":")[0] if options.await_nodes is not None else "127.0.0.1"
        arguments += ["--listen", f"{host}:0"]
        # Its own token: nodes that know the run's cannot open jobs.
        self._server_token = tokens.new()
        self._simulator = SimulatorProcess(
            arguments=arguments,
            log=out / "simulator.log",
            root=pth.root(),
            token=self._server_token,
            folder=out,
        )
        address = self._simulator.address()
        host, _, port = address.rpartition(":")
        return f"127.0.0.1:{port}" if host in ("0.0.0.0", "[::]", "::") else address

    def _job_message(self, job: Job) -> OpenJob:
        options = self._options
        first, end = self._spool_config(job)["steps"]
        return OpenJob(
            world_size=job.world_size,
            nodes=job.nodes,
            gpus_per_node=job.gpus_per_node,
            ranks_per_node=job.ranks_per_node,
            cluster=options.cluster,
            cluster_digest=cluster_digest(load_cluster(options.cluster)),
            command=list(options.command),
            environment={k: v for k, v in os.environ.items() if k.startswith(ENVIRONMENT_PREFIXES)},
            options=options.job_options(),
            record_steps=(first, end),
            opened_by=f"process {os.getpid()} on {socket.gethostname()}"[:256],
        )

    def _spool_config(self, job: Job) -> dict[str, Any]:
        assert self.out is not None
        steps, ranks = self._recorded
        return spool_config(
            self.out,
            world_size=job.world_size,
            timeline=self._options.timeline,
            steps=steps,
            ranks=ranks,
        )

    def _variables(self, job: Job, opened: JobOpened, address: str) -> dict[str, str]:
        options = self._options
        config = {
            **opened.config,
            "device_count": job.gpus_per_node,
            "cpu_time": options.cpu_time,
            "unknown_values": options.unknown_values,
            "values": options.values,
            "stand_ins": options.stand_ins,
            "moe_routing": self._moe_routing.message(),
            "steps": options.steps,
            "seed": options.seed,
            "out": str(self.out),
            "timeline": options.timeline,
            "spool": self._spool_config(job),
            # All ranks start their time.time() at the same whole second.
            "epoch_s": int(time.time()) + 1,
        }
        return {
            environment.ATTACH: "1",
            environment.SERVER: address,
            tokens.VARIABLE: opened.token,
            environment.CONFIG: json.dumps(config),
            environment.STATE: str(self._state),
            "PHANTOM_ROOT": pth.root(),
            "GRPC_ENABLE_FORK_SUPPORT": "0",
        }

    def _wait_for_agent(self) -> None:
        assert self._agent is not None
        held: list[tuple[str, Any]] = []
        while True:
            try:
                source, message = self._events.get(timeout=0.1)
            except queue.Empty:
                self._progress.show()
                continue
            if source == "agent":
                if message["event"] == "ready":
                    break
                reason = message.get("reason") or "the process that starts the ranks ended"
                details = "" if message.get("reason") else f"\n{self._agent.log_tail()}"
                raise UsageError(f"the job cannot be started: {reason}{details}".rstrip())
            if source == "signal":
                raise Interrupted(int(message))
            held.append((source, message))
        for event in held:
            self._events.put(event)

    def _follower(self, processes: list[PlannedProcess]) -> Follower:
        follower = Follower(sys.stderr.buffer if self._options.ranks_to_stderr else None)
        several = self._options.verbose and len(processes) > 1
        for process in processes:
            if self._options.verbose or process.rank in (0, None):
                follower.add(process.log, f"[{process.name}] " if several else "")
        assert self.out is not None
        if processes[0].rank is None:
            follower.add(self.out / "ranks" / "0.log")
        return follower

    def _conclude(self, job: Job, outcome: Outcome) -> Verdict:
        assert self._client is not None
        assert self._state is not None
        assert self.out is not None
        assert self._agent is not None
        left = self._agent.end_orphans(f"{environment.STATE}={self._state}")
        marks = sorted(path.name for path in self._state.iterdir())
        summary: Summary | None = None
        trouble: str | None = outcome.simulator_gone
        if trouble is None:
            statuses = {name.removeprefix("rank "): status for name, status in outcome.statuses.items()}
            try:
                summary = self._client.close_job(
                    CloseJob(statuses=statuses, interrupted=outcome.was_interrupted, wall_s=outcome.wall_s)
                )
                summary = self._fetch_files(summary)
            except PhantomError as error:
                trouble = str(error)
        verdict = judge(
            options=self._options,
            job=job,
            outcome=outcome,
            summary=summary,
            partial=self._partial,
            trouble=trouble,
            attached=any(name.startswith("attached-") for name in marks),
            ranks_seen=sum(name.startswith("rank-") for name in marks),
            orphans=left,
            wall_s=time.monotonic() - self._started_s,
        )
        noted = self._moe_routing.note(verdict.summary, self._options.moe_routing)
        verdict = replace(verdict, summary=noted)
        try:
            report.write_summary(self.out / "summary.json", verdict.summary)
        except OSError as error:
            text = cannot_write(error, self.out / "summary.json")
            return replace(verdict, status=verdict.status or SIMULATOR, messages=(*verdict.messages, text))
        self._progress.phase("writing the report")
        finished = report.finish(
            self.out,
            timeline=self._options.timeline,
            tokens_per_step=self._options.tokens_per_step,
            samples_per_step=self._options.samples_per_step,
            options=self._options.engine_options(),
        )
        return replace(verdict, summary=finished)

    def _keep(self, partial: dict[str, Any]) -> None:
        """Writes the results so far, so that they outlive this process and the simulator."""
        assert self.out is not None
        with contextlib.suppress(OutsideError, OSError):  # the final summary says so if one cannot be written
            self._partial = summary_from(partial, name="the simulator's summary")
            warning = "the run did not end in order; these are the steps up to a moment before"
            command = tuple(printable(word) for word in self._options.command)
            content = replace_parts(self._partial, command=command).warned(warning)
            report.write_summary(self.out / "summary.json", content)

    def _fetch_files(self, summary: Summary) -> Summary:
        """A simulator elsewhere gives its files of the job; a report without them would look complete."""
        if not self._recording:
            return summary
        assert self._client is not None
        assert self.out is not None
        for name, file in ((COLLECTIVES, self.out / "spool" / COLLECTIVES), (KERNELS, self.out / KERNELS)):
            try:
                self._client.fetch(name, file)
            except (SimulatorError, OSError) as error:
                text = f"the simulator's record did not arrive, so {name} is missing in the results: {error}"
                summary = summary.warned(text)
        return summary

    def _end(self) -> None:
        self._progress.clear()
        if self._agent is not None:
            self._agent.close()
        if self._state is not None:
            orphans.end(f"{environment.STATE}={self._state}")
            shutil.rmtree(self._state, ignore_errors=True)
        if self._client is not None:
            self._client.close()
        if self._simulator is not None:
            self._simulator.close()
        if self.out is not None:
            for path in (*self.out.glob("launch*.log"), self.out / "simulator.log"):
                if path.exists() and path.stat().st_size == 0:
                    path.unlink()


def _recorded(options: RunOptions, job: Job) -> tuple[tuple[int, int] | None, list[int] | None]:
    """Steps and ranks to be recorded, None where the user did not say. Raises UsageError."""
    steps, ranks = options.timeline_steps, options.timeline_ranks
    try:
        return (
            parse_steps(steps, option="--timeline-steps") if steps is not None else None,
            parse_ranks(ranks, world_size=job.world_size, option="--timeline-ranks")
            if ranks is not None
            else None,
        )
    except ValueError as error:
        raise UsageError(str(error)) from None


def _check_stand_ins(text: str) -> None:
    try:
        registry.chosen(text)
    except registry.UnknownStandIn as error:
        raise UsageError(str(error)) from None


def cluster_gpus(cluster: str) -> int:
    """GPUs per node of a preset or cluster file. Raises UsageError."""
    try:
        return load_cluster(cluster).node.gpus
    except NetsimError as error:
        raise UsageError(str(error)) from None
    except OSError as error:
        raise UsageError(f"cannot read cluster file {cluster}: {error.strerror}") from None
