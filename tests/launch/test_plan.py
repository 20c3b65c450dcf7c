"""Which processes are started, and their environment."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from phantom.launch.command import Command
from phantom.launch.errors import UsageError
from phantom.launch.plan import Job, PlannedProcess, plan, size_job

SCRIPT = Command(argv=("python", "t.py", "a"), launch="rank", python="", script="t.py", args=("a",))
TORCHRUN = Command(
    argv=("torchrun", "--nproc-per-node=2", "t.py"), launch="node", launcher="torchrun", arguments_at=1
)


def planned(command: Command, *, fork: bool = True, nodes: int = 2, gpus: int = 2) -> list[PlannedProcess]:
    job = Job(command=command, nodes=nodes, gpus_per_node=gpus, ranks_per_node=gpus)
    base = {"HOME": "/h", "RANK": "9", "PHANTOM_OLD": "1", "MASTER_PORT": "1"}
    return plan(job, variables={"PHANTOM_SERVER": "s:1"}, out=Path("/out"), fork=fork, base=base)


def test_every_rank_knows_its_place() -> None:
    last = planned(SCRIPT)[3]
    names = (
        "RANK",
        "LOCAL_RANK",
        "WORLD_SIZE",
        "LOCAL_WORLD_SIZE",
        "NODE_RANK",
        "GROUP_RANK",
        "PHANTOM_NODE",
    )
    assert [last.env[name] for name in names] == ["3", "1", "4", "2", "1", "1", "1"]
    assert last.env["MASTER_ADDR"] == "127.0.0.1"
    assert last.env["MASTER_PORT"] not in ("1", "0")
    assert last.env["PHANTOM"] == "1"
    assert "PHANTOM_OLD" not in last.env
    assert last.log == Path("/out/ranks/3.log")


def test_ranks_share_the_rendezvous() -> None:
    assert len({process.env["MASTER_PORT"] for process in planned(SCRIPT)}) == 1


def test_forks_run_the_script_and_others_the_command() -> None:
    assert (planned(SCRIPT)[0].script, planned(SCRIPT)[0].args) == ("t.py", ("a",))
    started = planned(SCRIPT, fork=False)[0]
    assert (started.script, started.args) == (None, (sys.executable, "t.py", "a"))


def test_one_launcher_per_node_without_a_rank() -> None:
    processes = planned(TORCHRUN)
    assert [process.node for process in processes] == [0, 1]
    assert all("RANK" not in process.env for process in processes)
    assert "--node-rank=1" in processes[1].args


def test_size_follows_options_then_command_then_cluster() -> None:
    assert size_job(SCRIPT, nodes=2, gpus_per_node=4, cluster_gpus=8).world_size == 8
    assert size_job(TORCHRUN, nodes=3, gpus_per_node=None, cluster_gpus=8).world_size == 6
    assert size_job(SCRIPT, nodes=1, gpus_per_node=None, cluster_gpus=8).world_size == 8


@pytest.mark.parametrize(
    ("nodes", "gpus", "words"),
    [(0, 1, "at least 1, got 0"), (1, 0, "at least 1, got 0"), (1, 9, "has 8 GPUs")],
)
def test_impossible_sizes_are_refused(nodes: int, gpus: int, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        size_job(SCRIPT, nodes=nodes, gpus_per_node=gpus, cluster_gpus=8)


def test_more_processes_than_gpus_are_refused() -> None:
    with pytest.raises(UsageError, match="asks for 2 processes"):
        size_job(TORCHRUN, nodes=1, gpus_per_node=1, cluster_gpus=8)
