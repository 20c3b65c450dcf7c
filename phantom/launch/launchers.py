"""Options that other launchers need to run as one of several simulated nodes, where the user gave none."""

from __future__ import annotations

from collections.abc import Sequence

from phantom.launch.command import Command
from phantom.launch.errors import UsageError

LOOPBACK = ("127.0.0.1", "localhost", "::1")


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


def processes_per_node(command: Command) -> int | None:
    """How many ranks per node the user asked the launcher for; None where that is left open."""
    options = _own_options(command)
    if command.launcher == "torchrun":
        value = given(options, "--nproc-per-node")
    elif command.launcher == "deepspeed":
        value = given(options, "--num-gpus")
    else:
        return None
    return int(value) if value is not None and value.isdigit() else None


def _own_options(command: Command) -> tuple[str, ...]:
    """The launcher's own options: up to the script."""
    options = command.argv[command.arguments_at :]
    for at, text in enumerate(options):
        if text.endswith(".py") and (
            at == 0 or not options[at - 1].startswith("--") or "=" in options[at - 1]
        ):
            return options[:at]
        if text in ("-m", "--module"):
            return options[:at]
    return options


def for_node(
    command: Command, *, node: int, nodes: int, gpus_per_node: int, rendezvous: tuple[str, int]
) -> tuple[str, ...]:
    """The command line of one simulated node; the nodes meet at the host and port of `rendezvous`.

    Raises UsageError where the user's own options contradict the number of nodes.
    """
    options = _own_options(command)
    if command.launcher == "torchrun":
        added = _torchrun(options, node=node, nodes=nodes, gpus_per_node=gpus_per_node, at=rendezvous)
    elif command.launcher == "accelerate":
        added = _accelerate(options, node=node, nodes=nodes, gpus_per_node=gpus_per_node, at=rendezvous)
    elif command.launcher == "deepspeed":
        added = _deepspeed(options, node=node, nodes=nodes, at=rendezvous)
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


def _deepspeed(options: Sequence[str], *, node: int, nodes: int, at: tuple[str, int]) -> list[str]:
    if given(options, "--hostfile", "-H") is not None:
        return []
    added: list[str] = []
    if nodes > 1 and given(options, "--no-ssh") is None:
        added += ["--no_ssh", f"--num_nodes={nodes}", f"--node_rank={node}", f"--master_addr={at[0]}"]
    if given(options, "--master-port") is None:
        added.append(f"--master_port={at[1]}")
    return added
