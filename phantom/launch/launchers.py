"""Options that other launchers need to run as one of several simulated nodes, where the user gave none."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from phantom.launch.command import Command
from phantom.launch.errors import UsageError

LOOPBACK = ("127.0.0.1", "localhost", "::1")

_PROGRAM = re.compile(r"python[\d.]*t?|.*\.(py|sh)|torchrun|accelerate|deepspeed|bash|sh|env|numactl|time")
"""Programs at which the command line of mpirun ends and that of the job begins."""

_MPI_TOTAL = ("-np", "-n", "--np", "-c")
_MPI_PER_NODE = ("-N", "--npernode", "-ppn", "--ntasks-per-node")
_MPI_HOSTS = ("-H", "--host", "--hosts", "--hostfile", "-f", "--machinefile", "--default-hostfile")


def given(argv: Sequence[str], *names: str) -> str | None:
    """Value of the first of these options in `argv` ("" for a flag); None where none is there.

    torchrun and accelerate accept `_` for `-` inside names.
    """
    wanted = {name.lstrip("-").replace("_", "-") for name in names}
    for at, text in enumerate(argv):
        if not text.startswith("-"):
            continue
        name, equals, value = text.partition("=")
        if name.lstrip("-").replace("_", "-") in wanted:
            if equals:
                return value
            following = argv[at + 1] if at + 1 < len(argv) else ""
            return "" if following.startswith("-") else following
    return None


def processes_per_node(command: Command, *, nodes: int = 1) -> int | None:
    """How many ranks per node the user asked the launcher for; None where that is left open.

    Raises UsageError where the launcher's own hosts contradict the number of nodes.
    """
    options = _own_options(command)
    if command.launcher == "torchrun":
        value = given(options, "--nproc-per-node")
    elif command.launcher == "accelerate":
        return _share(given(options, "--num-processes"), nodes, "--num_processes")
    elif command.launcher == "deepspeed":
        value = given(options, "--num-gpus")
        hostfile = given(options, "--hostfile", "-H")
        if hostfile is not None:
            value = value or _hostfile_slots(options, hostfile, nodes)
    elif command.launcher == "mpirun":
        value = given(options, *_MPI_PER_NODE)
        if value is None:
            return _share(given(options, *_MPI_TOTAL), nodes, "-np")
    else:
        return None
    return int(value) if value is not None and value.isdigit() else None


def _share(value: str | None, nodes: int, option: str) -> int | None:
    """Ranks of each node where the option counts those of all."""
    if value is None or not value.isdigit():
        return None
    if int(value) % nodes:
        raise UsageError(f"the command says {option}={value}, which {nodes} nodes (-N) cannot share evenly")
    return int(value) // nodes


def _hostfile_slots(options: Sequence[str], hostfile: str, nodes: int) -> str | None:
    """GPUs per host of a DeepSpeed hostfile; None where further options choose among them."""
    if given(options, "--include", "--exclude", "-i", "-e") is not None:
        return None
    try:
        lines = Path(hostfile).read_text().splitlines()
    except OSError as error:
        raise UsageError(f"cannot read the hostfile {hostfile}: {error.strerror}") from None
    found = [line.split() for line in lines if line.strip() and not line.lstrip().startswith("#")]
    wanted = given(options, "--num-nodes")
    count = int(wanted) if wanted is not None and wanted.isdigit() and int(wanted) > 0 else len(found)
    if count != nodes:
        raise UsageError(
            f"{hostfile} names {count} hosts, phantom run simulates {nodes} nodes (-N); make them agree"
        )
    slots = {word[6:] for words in found[:count] for word in words if word.startswith("slots=")}
    return slots.pop() if len(slots) == 1 else None


def _own_options(command: Command) -> tuple[str, ...]:
    """The launcher's own options: up to the script."""
    options = command.argv[command.arguments_at :]
    if command.launcher == "mpirun":
        programs = [at for at, text in enumerate(options) if _PROGRAM.fullmatch(text.rpartition("/")[2])]
        return options[: programs[0]] if programs else options
    for at, text in enumerate(options):
        if text.endswith(".py") and (
            at == 0 or not options[at - 1].startswith("--") or "=" in options[at - 1]
        ):
            return options[:at]
        if text in ("-m", "--module"):
            return options[:at]
    return options


def for_all(command: Command, *, nodes: int, ranks_per_node: int) -> tuple[str, ...]:
    """The command line that starts the job on all simulated nodes at once."""
    if command.launcher != "mpirun":
        return command.argv
    options = _own_options(command)
    added: list[str] = []
    if given(options, *_MPI_TOTAL, *_MPI_PER_NODE) is None:
        added += ["-np", str(nodes * ranks_per_node)]
    if nodes > 1 and given(options, *_MPI_HOSTS) is None:
        # Names that the ssh of phantom/launch/shims.py takes for the simulated nodes.
        added += ["--host", ",".join(f"node{node}:{ranks_per_node}" for node in range(nodes))]
    return (*command.argv[:1], *added, *command.argv[1:])


def for_node(
    command: Command, *, node: int, nodes: int, gpus_per_node: int, rendezvous: tuple[str, int],
    hostfile: str | None = None,
) -> tuple[str, ...]:  # fmt: skip
    """The command line of one simulated node; the nodes meet at the host and port of `rendezvous`.

    `hostfile`: a file of as many hosts as there are nodes, for DeepSpeed.

    Raises UsageError where the user's own options contradict the number of nodes.
    """
    options = _own_options(command)
    if command.launcher == "torchrun":
        added = _torchrun(options, node=node, nodes=nodes, gpus_per_node=gpus_per_node, at=rendezvous)
    elif command.launcher == "accelerate":
        added = _accelerate(options, node=node, nodes=nodes, gpus_per_node=gpus_per_node, at=rendezvous)
    elif command.launcher == "deepspeed":
        added = _deepspeed(options, node=node, nodes=nodes, at=rendezvous, hostfile=hostfile)
    else:
        added = []
    at = command.arguments_at
    return (*command.argv[:at], *added, *command.argv[at:])


def _check_nodes(option: str, value: str | None, nodes: int) -> None:
    if value is not None and value.isdigit() and int(value) != nodes:
        raise UsageError(
            f"the command says {option}={value}, phantom run simulates {nodes} nodes (-N); make them agree"
        )


def _check_endpoint(endpoint: str | None, *, nodes: int, at: tuple[str, int]) -> None:
    """Nodes that look for each other where none of the others is would wait until torchrun gives up."""
    if endpoint is None or nodes == 1:
        return
    host, _, port = endpoint.rpartition(":")
    alone = port == "0" or (at[0] not in LOOPBACK and (host or endpoint) in LOOPBACK)
    if alone:
        raise UsageError(
            f"--rdzv-endpoint={endpoint} is a place of its own on each of the {nodes} nodes (-N), so that "
            f"they never meet; leave the --rdzv options out"
        )


def _torchrun(
    options: Sequence[str], *, node: int, nodes: int, gpus_per_node: int, at: tuple[str, int]
) -> list[str]:
    added: list[str] = []
    count = given(options, "--nnodes")
    standalone = given(options, "--standalone") is not None
    _check_nodes("--nnodes", count, nodes)
    if standalone and nodes > 1:
        raise UsageError(f"--standalone is one node, phantom run simulates {nodes} (-N); leave it out")
    _check_endpoint(given(options, "--rdzv-endpoint"), nodes=nodes, at=at)
    if count is None and not standalone:
        added.append(f"--nnodes={nodes}")
    if given(options, "--nproc-per-node") is None:
        added.append(f"--nproc-per-node={gpus_per_node}")
    if (
        given(options, "--rdzv-endpoint", "--rdzv-backend", "--master-addr", "--master-port") is None
        and not standalone
    ):
        # Static rendezvous: node k holds ranks k*G... whoever comes first, so that runs are alike.
        added += [f"--master-addr={at[0]}", f"--master-port={at[1]}"]
    if given(options, "--node-rank") is None and not standalone:
        added.append(f"--node-rank={node}")
    return added


def _accelerate(
    options: Sequence[str], *, node: int, nodes: int, gpus_per_node: int, at: tuple[str, int]
) -> list[str]:
    added: list[str] = []
    _check_nodes("--num_machines", given(options, "--num-machines"), nodes)
    if given(options, "--config-file") is not None:
        return added
    if given(options, "--num-processes") is None:
        added.append(f"--num_processes={nodes * gpus_per_node}")
    if given(options, "--num-machines") is None:
        added.append(f"--num_machines={nodes}")
    if nodes > 1 and given(options, "--machine-rank") is None:
        added.append(f"--machine_rank={node}")
    if given(options, "--main-process-port") is None:
        added += [f"--main_process_ip={at[0]}", f"--main_process_port={at[1]}"]
    chosen = given(
        options, "--multi-gpu", "--use-fsdp", "--use-deepspeed", "--use-megatron-lm", "--cpu", "--tpu"
    )
    if chosen is None and nodes * gpus_per_node > 1:
        added.append("--multi_gpu")
    return added


def _deepspeed(
    options: Sequence[str], *, node: int, nodes: int, at: tuple[str, int], hostfile: str | None
) -> list[str]:
    if given(options, "--hostfile", "-H") is not None:
        return []
    added: list[str] = []
    if nodes > 1 and given(options, "--no-ssh") is None:
        added += ["--no_ssh", f"--num_nodes={nodes}", f"--node_rank={node}", f"--master_addr={at[0]}"]
        if hostfile is not None:  # it only counts with --no_ssh, but DeepSpeed wants to see as many hosts
            added.append(f"--hostfile={hostfile}")
    if given(options, "--master-port") is None:
        added.append(f"--master_port={at[1]}")
    return added
