"""Which processes a run starts, with which environment."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from interpose import environment
from interpose.startup import pth
from phantom.launch import launchers, shims
from phantom.launch.command import NODE, ONCE, RANK, Command
from phantom.launch.errors import UsageError
from phantom.launch.ports import free_ports

_PLACE = (
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "NODE_RANK",
    "GROUP_RANK",
    "MASTER_ADDR",
    "MASTER_PORT",
)

# A phantom run that was itself started by mpirun or srun is no rank of the simulated job.
_NOT_INHERITED = ("PHANTOM", "OMPI_COMM_WORLD_", "PMI_", "PMIX_", "SLURM_PROCID", "SLURM_LOCALID")

# Open MPI: more ranks than cores, not bound to them; unless the user says otherwise.
_MPI_DEFAULTS = {
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "OMPI_MCA_hwloc_base_binding_policy": "none",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
    "PRTE_MCA_hwloc_default_binding_policy": "none",
}


@dataclass(frozen=True, kw_only=True)
class PlannedProcess:
    """One process: what the fork server is told, and which rank it is (None: it starts ranks itself)."""

    name: str
    rank: int | None
    node: int
    log: Path
    env: dict[str, str]
    args: tuple[str, ...]
    script: str | None = None
    module: str | None = None

    def message(self, cwd: Path) -> dict[str, Any]:
        """The fork server's description of this process."""
        return {
            "name": self.name,
            "log": str(self.log),
            "env": self.env,
            "cwd": str(cwd),
            "args": list(self.args),
            "script": self.script,
            "module": self.module,
        }


@dataclass(frozen=True, kw_only=True)
class Job:
    """Size of the simulated job and its command."""

    command: Command
    nodes: int
    gpus_per_node: int
    ranks_per_node: int

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return self.nodes * self.ranks_per_node


def size_job(command: Command, *, nodes: int, gpus_per_node: int | None, cluster_gpus: int) -> Job:
    """Settles how large the job is: -G, else what the command's launcher was given, else the cluster's node.

    Raises UsageError for sizes that make no sense or that the cluster's node does not have.
    """
    if nodes < 1:
        raise UsageError(f"-N/--nodes must be at least 1, got {nodes}")
    if gpus_per_node is not None and gpus_per_node < 1:
        raise UsageError(f"-G/--gpus-per-node must be at least 1, got {gpus_per_node}")
    if gpus_per_node is not None and gpus_per_node > cluster_gpus:
        raise UsageError(
            f"-G/--gpus-per-node {gpus_per_node}: a node of this cluster has {cluster_gpus} GPUs"
        )
    asked = launchers.processes_per_node(command, nodes=nodes)
    if asked is not None and asked > (gpus_per_node or cluster_gpus):
        raise UsageError(
            f"the command asks for {asked} processes per node, the simulated node has "
            f"{gpus_per_node or cluster_gpus} GPUs; give -G {asked} or another cluster"
        )
    gpus = gpus_per_node or asked or cluster_gpus
    return Job(command=command, nodes=nodes, gpus_per_node=gpus, ranks_per_node=asked or gpus)


def plan(
    job: Job,
    *,
    variables: Mapping[str, str],
    out: Path,
    fork: bool,
    base: Mapping[str, str] | None = None,
    rendezvous: tuple[str, int] | None = None,
    node: int | None = None,
    hosts_are_real: bool = False,
) -> list[PlannedProcess]:
    """Lists the processes to start.

    `variables`: the PHANTOM_* variables of all of them. `fork`: ranks are forks that run the script
    themselves. `base`: the environment to start from (this process's). `rendezvous`: host and port at which
    the ranks meet (a free port of 127.0.0.1). `node`: only this node's processes.
    `hosts_are_real`: the nodes are machines or containers with names of their own; else the programs that ask
    for hosts are answered (shims.py).

    Raises UsageError where the command contradicts the number of nodes.
    """
    inherited = {
        name: value
        for name, value in (os.environ if base is None else base).items()
        if name not in _PLACE and not name.startswith(_NOT_INHERITED)
    }
    # As torchrun does: ranks share the machine's cores.
    inherited.setdefault("OMP_NUM_THREADS", "1")
    common = {
        **inherited,
        **variables,
        environment.ATTACH: "1",
        "PHANTOM_ROOT": pth.root(),
    }
    host, port = rendezvous or ("127.0.0.1", free_ports(1)[0])
    common |= {"MASTER_ADDR": host, "MASTER_PORT": str(port)}
    ranks = out / "ranks"
    if environment.STATE in variables:
        # With machines of their own, each writes its programs into the folder that all see.
        folder = Path(variables[environment.STATE], "bin" if node is None else f"bin-{node}")
        common |= shims.write_gpu_tools(folder / "gpu", path=common.get("PATH", os.defpath))
        if job.command.launch != RANK and not hosts_are_real:
            common |= shims.write_host_tools(
                folder / "host", nodes=job.nodes, path=common["PATH"], once=job.command.launch == ONCE
            )
    if job.command.launch == RANK:
        planned = _per_rank(job, common, ranks, fork=fork)
    elif job.command.launch == NODE:
        planned = [_node(job, common, ranks, number, (host, port)) for number in range(job.nodes)]
    else:
        assert job.command.launch == ONCE
        planned = [_once(job, common, ranks)]
    return [process for process in planned if node is None or process.node == node]


def _argv(command: Command) -> tuple[str, ...]:
    """The command line; phantom's own interpreter where the command names none."""
    return (sys.executable, *command.argv[1:]) if command.python == "" else command.argv


def _per_rank(job: Job, common: Mapping[str, str], ranks: Path, *, fork: bool) -> list[PlannedProcess]:
    planned = []
    for rank in range(job.world_size):
        node, local_rank = divmod(rank, job.ranks_per_node)
        env = {
            **common,
            "RANK": str(rank),
            "LOCAL_RANK": str(local_rank),
            "WORLD_SIZE": str(job.world_size),
            "LOCAL_WORLD_SIZE": str(job.ranks_per_node),
            "NODE_RANK": str(node),
            "GROUP_RANK": str(node),
            environment.NODE: str(node),
        }
        process = PlannedProcess(
            name=f"rank {rank}", rank=rank, node=node, log=ranks / f"{rank}.log", env=env, args=()
        )
        if fork:
            command = job.command
            process = replace(process, script=command.script, module=command.module, args=command.args)
        else:
            process = replace(process, args=_argv(job.command))
        planned.append(process)
    return planned


def _once(job: Job, common: Mapping[str, str], ranks: Path) -> PlannedProcess:
    log = ranks / "job.log"
    env = {
        **_MPI_DEFAULTS,
        **common,
        "NNODES": str(job.nodes),
        "GPUS_PER_NODE": str(job.gpus_per_node),
        environment.NODE_LOG: str(log),
    }
    argv = launchers.for_all(job.command, nodes=job.nodes, ranks_per_node=job.ranks_per_node)
    if job.command.python == "":
        argv = (sys.executable, *argv[1:])
    return PlannedProcess(name="job", rank=None, node=0, log=log, env=env, args=argv)


def _node(
    job: Job, common: Mapping[str, str], ranks: Path, node: int, rendezvous: tuple[str, int]
) -> PlannedProcess:
    log = ranks / f"node-{node}.log"
    env = {
        **common,
        "NODE_RANK": str(node),
        "NNODES": str(job.nodes),
        "GPUS_PER_NODE": str(job.gpus_per_node),
        environment.NODE: str(node),
        environment.NODE_LOG: str(log),
    }
    hostfile = None
    if job.command.launcher == "deepspeed" and job.nodes > 1:
        hostfile = str(ranks / "hosts")
        ranks.mkdir(parents=True, exist_ok=True)
        hosts = (f"node{number} slots={job.ranks_per_node}\n" for number in range(job.nodes))
        Path(hostfile).write_text("".join(hosts))
    argv = launchers.for_node(
        job.command,
        node=node,
        nodes=job.nodes,
        gpus_per_node=job.ranks_per_node,
        rendezvous=rendezvous,
        hostfile=hostfile,
    )
    if job.command.python == "":
        argv = (sys.executable, *argv[1:])
    return PlannedProcess(name=f"node {node}", rank=None, node=node, log=log, env=env, args=argv)
