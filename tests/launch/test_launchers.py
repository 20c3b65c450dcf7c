"""Options that are added to other launchers, and those that are left alone."""

from __future__ import annotations

import pytest

from phantom.launch.command import Command
from phantom.launch.errors import UsageError
from phantom.launch.launchers import for_node, given, processes_per_node


def command(*argv: str, launcher: str = "torchrun", at: int = 1) -> Command:
    return Command(argv=argv, launch="node", launcher=launcher, arguments_at=at)


def line(made: Command, *, node: int = 1, nodes: int = 2, host: str = "127.0.0.1") -> list[str]:
    return list(for_node(made, node=node, nodes=nodes, gpus_per_node=4, rendezvous=(host, 1234)))


def test_torchrun_gets_what_is_missing() -> None:
    assert line(command("torchrun", "train.py", "--nnodes", "7")) == [
        "torchrun", "--nnodes=2", "--nproc-per-node=4", "--master-addr=127.0.0.1", "--master-port=1234",
        "--node-rank=1", "train.py", "--nnodes", "7",
    ]  # fmt: skip


def test_torchrun_keeps_what_the_user_gave() -> None:
    made = line(
        command("torchrun", "--nproc_per_node=2", "--rdzv-backend", "c10d", "--rdzv-endpoint=host:1", "t.py")
    )
    assert made[1:3] == ["--nnodes=2", "--node-rank=1"]
    assert not any(text.startswith("--master") for text in made)


def test_standalone_torchrun_is_one_node() -> None:
    assert line(command("torchrun", "--standalone", "t.py"), node=0, nodes=1) == [
        "torchrun", "--nproc-per-node=4", "--standalone", "t.py"]  # fmt: skip
    with pytest.raises(UsageError, match="--standalone"):
        line(command("torchrun", "--standalone", "t.py"))


def test_contradicting_node_counts_are_refused() -> None:
    with pytest.raises(UsageError, match=r"--nnodes=3.*2 nodes"):
        line(command("torchrun", "--nnodes=3", "t.py"))


def test_module_option_ends_the_launchers_options() -> None:
    assert "--node-rank=1" in line(command("torchrun", "-m", "package.train", "--node-rank", "5"))


def test_accelerate_gets_machines_and_processes() -> None:
    made = line(command("accelerate", "launch", "t.py", launcher="accelerate", at=2))
    assert made[:2] == ["accelerate", "launch"]
    assert {"--num_processes=8", "--num_machines=2", "--machine_rank=1", "--multi_gpu"} <= set(made)
    assert made[-1] == "t.py"


def test_accelerate_with_a_config_file_is_left_alone() -> None:
    made = line(
        command("accelerate", "launch", "--config_file", "c.yaml", "t.py", launcher="accelerate", at=2)
    )
    assert made == ["accelerate", "launch", "--config_file", "c.yaml", "t.py"]


def test_deepspeed_on_several_nodes_needs_no_ssh() -> None:
    made = line(command("deepspeed", "t.py", launcher="deepspeed"))
    assert {"--no_ssh", "--num_nodes=2", "--node_rank=1", "--master_port=1234"} <= set(made)


def test_option_values_are_found_in_both_spellings() -> None:
    assert given(["--nproc_per_node", "4"], "--nproc-per-node") == "4"
    assert given(["--nproc-per-node=8"], "--nproc_per_node") == "8"
    assert given(["--standalone", "--x"], "--standalone") == ""
    assert given(["train.py"], "--standalone") is None
    assert processes_per_node(command("torchrun", "--nproc-per-node", "2", "t.py")) == 2
    assert processes_per_node(command("torchrun", "--nproc-per-node", "gpu", "t.py")) is None
