"""Every way in which sites start their jobs, end to end: the virtual times are those of the plain script."""

from __future__ import annotations

import importlib.util
import json
import shutil
import signal
import sys
from pathlib import Path

import pytest

from interpose import build
from launch.conftest import Phantom

pytestmark = [
    pytest.mark.skipif(not build.is_current(), reason="extension not built: python -m interpose.build"),
    pytest.mark.timeout(580),
]

TRAIN = """
import argparse, os, sys
for name, given in (("RANK", "RANK"), ("WORLD_SIZE", "SIZE"), ("LOCAL_RANK", "LOCAL_RANK")):
    if name not in os.environ:  # as scripts that mpirun starts do
        os.environ[name] = os.environ["OMPI_COMM_WORLD_" + given]
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

parser = argparse.ArgumentParser()
parser.add_argument("--local_rank", type=int)
parser.add_argument("--steps", type=int, default=3)
steps = parser.parse_args().steps
local = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(local)
dist.init_process_group("nccl")
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(512, 512).cuda())
optimizer = torch.optim.AdamW(model.parameters())
for step in range(steps):
    model(torch.randn(16, 512, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
torch.cuda.synchronize()
# In one write: the ranks of an mpirun share a pipe, and PYTHONUNBUFFERED may be set.
sys.stdout.write(f"rank {dist.get_rank()} local {local} node {os.environ['PHANTOM_NODE']}\\n")
dist.destroy_process_group()
"""

# What `mpirun --host a:2,b:2 PROGRAM` does, in little: Open MPI reaches hosts through ssh and sets these.
FAKE_MPIRUN = """
import os, subprocess, sys
options, words = {}, sys.argv[1:]
while words[0].startswith("-"):
    name, value, *words = words
    options[name] = value
hosts = [text.split(":") for text in options.get("--host", f"here:{options['-np']}").split(",")]
running, rank = [], 0
for name, slots in hosts:
    for local in range(int(slots)):
        place = {"RANK": rank, "SIZE": options["-np"], "LOCAL_RANK": local, "LOCAL_SIZE": slots}
        exports = " ".join(f"OMPI_COMM_WORLD_{key}={value}" for key, value in place.items())
        command = " ".join(words)
        reach = ["sh", "-c"] if name == "here" else ["ssh", name]
        running.append(subprocess.Popen([*reach, f"{exports} {command}"]))
        rank += 1
sys.exit(max(process.wait() for process in running))
"""


Times = tuple[list[float], list[object]]
TIMEOUT_S = 250


def runner_in(folder: Path) -> Phantom:
    """`phantom` with nothing faked, and a job in its folder."""
    (folder / "site").mkdir()
    runner = Phantom(folder, None, faked=False)
    runner.script("train.py", TRAIN)
    return runner


def run(runner: Phantom, *arguments: str) -> str:
    """Standard output of `phantom run` on two nodes of two GPUs; fails as it does."""
    process = runner.start("run", "-v", "-N", "2", "-G", "2", *arguments)
    try:
        out, err = process.communicate(timeout=TIMEOUT_S)
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            process.communicate()
    assert process.returncode == 0, out + err
    return out


def times(runner: Phantom, out: str) -> Times:
    found = json.loads((runner.folder / out / "summary.json").read_text())
    assert len(found["ranks"]) == 4
    return [step["virtual_s"] for step in found["steps"]], [rank["compute_s"] for rank in found["ranks"]]


@pytest.fixture(scope="module")
def plain_times(tmp_path_factory: pytest.TempPathFactory) -> Times:
    """The times of the script by itself."""
    runner = runner_in(tmp_path_factory.mktemp("plain"))
    run(runner, "--out", "plain", "train.py")
    return times(runner, "plain")


@pytest.fixture
def real(tmp_path: Path) -> Phantom:
    return runner_in(tmp_path)


def has(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


def expect(plain: Times, real: Phantom, *command: str, launch: str = "") -> None:
    """Runs `command`, whose times and places must be those of the plain script."""
    options = ("--launch", launch) if launch else ()
    run(real, "--out", "other", *options, "--", *command)
    assert times(real, "other") == plain
    logs = "".join(path.read_text() for path in (real.folder / "other" / "ranks").glob("*.log"))
    for place in ("0 local 0 node 0", "1 local 1 node 0", "2 local 0 node 1", "3 local 1 node 1"):
        assert f"rank {place}" in logs, logs[-3000:]


def test_a_shell_script_that_reaches_its_hosts_by_ssh(real: Phantom, plain_times: Times) -> None:
    real.script(
        "launch.sh",
        """#!/bin/bash
        set -e
        hosts=(gpu-a gpu-b)
        node=0
        for host in "${hosts[@]}"; do
            ssh -o StrictHostKeyChecking=no $host "cd $PWD && torchrun --nnodes=2 --node-rank=$node \\
                --nproc-per-node=2 --master-addr=127.0.0.1 --master-port=$MASTER_PORT train.py" &
            node=$((node + 1))
        done
        wait -n; wait -n
        """,
    )
    expect(plain_times, real, "bash", "launch.sh", launch="once")


def test_a_shell_script_that_warms_up_before_the_real_run(real: Phantom, plain_times: Times) -> None:
    real.script(
        "launch.sh",
        """#!/bin/bash
        set -e
        for steps in 1 3; do
            torchrun --nnodes=$NNODES --node-rank=$NODE_RANK --nproc-per-node=$GPUS_PER_NODE \\
                --master-addr=$MASTER_ADDR --master-port=$MASTER_PORT train.py --steps $steps
        done
        """,
    )
    expect(plain_times, real, "bash", "launch.sh")
    summary = json.loads((real.folder / "other" / "summary.json").read_text())
    assert [launch["steps"] for launch in summary["earlier_launches"]] == [1]
    assert any("started its ranks 2 times" in text for text in summary["warnings"])


def test_mpirun(real: Phantom, plain_times: Times) -> None:
    (real.folder / "bin").mkdir()
    program = real.folder / "bin" / "mpirun"
    program.write_text(f"#!{sys.executable}\n{FAKE_MPIRUN}")
    program.chmod(0o755)
    expect(plain_times, real, str(program), "python", "train.py")


@pytest.mark.skipif(shutil.which("orted") is None, reason="Open MPI is not installed (openmpi-bin)")
def test_the_mpirun_of_open_mpi(real: Phantom, plain_times: Times) -> None:
    allow = ("env", "OMPI_ALLOW_RUN_AS_ROOT=1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1")
    real.script("launch.sh", f"{' '.join(allow)} mpirun -np 4 --host a:2,b:2 python train.py\n")
    expect(plain_times, real, "bash", "launch.sh", launch="once")


@pytest.mark.skipif(not has("accelerate"), reason="accelerate is not installed (extra `frameworks`)")
def test_accelerate_launch(real: Phantom, plain_times: Times) -> None:
    expect(plain_times, real, "accelerate", "launch", "--num_processes", "4", "train.py")


@pytest.mark.skipif(not has("deepspeed"), reason="deepspeed is not installed (extra `frameworks`)")
@pytest.mark.parametrize("form", ["hostfile", "nodes"])
def test_deepspeed(real: Phantom, plain_times: Times, form: str) -> None:
    real.script("hosts", "worker-1 slots=2\nworker-2 slots=2\n")
    options = ["--hostfile", "hosts"] if form == "hostfile" else []
    expect(plain_times, real, "deepspeed", *options, "train.py")
