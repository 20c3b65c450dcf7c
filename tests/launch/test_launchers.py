"""Options that are added to other launchers, and those that are left alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from phantom.launch.command import Command
from phantom.launch.errors import UsageError
from phantom.launch.launchers import for_all, for_node, given, processes_per_node


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


MPIRUN = {"launcher": "mpirun", "at": 1}


def test_mpirun_gets_processes_and_the_simulated_hosts() -> None:
    made = for_all(command("mpirun", "-x", "A=1", "python", "t.py", **MPIRUN), nodes=2, ranks_per_node=4)
    assert made == (
        "mpirun", "-np", "8", "--host", "node0:4,node1:4", "-x", "A=1", "python", "t.py"
    )  # fmt: skip
    given_all = command("mpirun", "-np", "8", "-H", "a:4,b:4", "python", "-n", "t.py", **MPIRUN)
    assert for_all(given_all, nodes=2, ranks_per_node=4) == given_all.argv
    assert processes_per_node(given_all, nodes=2) == 4
    assert processes_per_node(command("mpirun", "-N", "4", "python", "t.py", **MPIRUN), nodes=2) == 4


def test_a_number_of_processes_that_nodes_cannot_share_is_refused() -> None:
    with pytest.raises(UsageError, match=r"-np=7.*2 nodes"):
        processes_per_node(command("mpirun", "-np", "7", "python", "t.py", **MPIRUN), nodes=2)
    accelerate = command("accelerate", "launch", "--num_processes", "8", "t.py", launcher="accelerate", at=2)
    assert processes_per_node(accelerate, nodes=2) == 4


def test_a_hostfile_of_deepspeed_says_how_many_nodes_and_gpus(tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text("# ours\nworker-1 slots=4\nworker-2 slots=4\n")
    made = command("deepspeed", "--hostfile", str(tmp_path / "hosts"), "t.py", launcher="deepspeed")
    assert processes_per_node(made, nodes=2) == 4
    with pytest.raises(UsageError, match=r"names 2 hosts, phantom run simulates 1 nodes"):
        processes_per_node(made, nodes=1)
    missing = command("deepspeed", "--hostfile", "/no/hosts", "t.py", launcher="deepspeed")
    with pytest.raises(UsageError, match=r"cannot read the hostfile /no/hosts"):
        processes_per_node(missing, nodes=1)


def test_option_values_are_found_in_both_spellings() -> None:
    assert given(["--nproc_per_node", "4"], "--nproc-per-node") == "4"
    assert given(["--nproc-per-node=8"], "--nproc_per_node") == "8"
    assert given(["--standalone", "--x"], "--standalone") == ""
    assert given(["train.py"], "--standalone") is None
    assert processes_per_node(command("torchrun", "--nproc-per-node", "2", "t.py")) == 2
    assert processes_per_node(command("torchrun", "--nproc-per-node", "gpu", "t.py")) is None
