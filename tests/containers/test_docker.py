"""Real containers: builds the image and runs jobs with docker compose (make docker-test)."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from composed import (
    ENVIRONMENT,
    GIVEN_IMAGE,
    IMAGE,
    ROOT,
    USER,
    Composed,
    frameworks,
    phantom,
    read_summary,
    same_figures,
)
from frameworks.torchtitan_assets import make_assets

pytestmark = [pytest.mark.docker, pytest.mark.timeout(3600)]

BUILD_TIMEOUT_S = 3000.0
SIZE = ("-N", "2", "-G", "4")
ENDLESS = """
import os, sys, time, torch, torch.distributed as dist
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64).cuda())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
step = 0
while True:
    model(torch.ones(8, 64, device="cuda")).sum().backward()
    optimizer.step()
    torch.cuda.synchronize()
    step += 1
    if step == 4:
        print("four steps", flush=True)
        FAIL
"""


@pytest.fixture(scope="session")
def image(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The image with the frameworks that the tests run."""
    if GIVEN_IMAGE:
        return GIVEN_IMAGE
    folder = tmp_path_factory.mktemp("build")
    (folder / "train.py").write_text("")
    job = Composed(folder, "phantom-test-build")
    job.write(
        "--extras", frameworks("torchtitan", "megatron-core", "triton", "tokenizers", "einops"), "train.py"
    )
    built = job.compose("build", timeout_s=BUILD_TIMEOUT_S)
    assert built.returncode == 0, (built.stdout + built.stderr)[-5000:]
    return IMAGE


@pytest.fixture
def job(image: str, tmp_path: Path) -> Iterator[Composed]:
    tmp_path.chmod(0o755)
    composed = Composed(tmp_path, f"phantom-test-{os.getpid()}")
    yield composed
    composed.compose("down", "--timeout", "5", "--volumes")


def inside(image: str, *command: str) -> subprocess.CompletedProcess[str]:
    started = ["docker", "run", "--rm", image, *command]
    return subprocess.run(started, env=ENVIRONMENT, text=True, capture_output=True, timeout=120)


def test_the_image_holds_what_a_job_needs_and_no_more(image: str) -> None:
    script = "import os, shutil, torch; print(os.getuid(), shutil.which('g++'), torch.__version__)"
    done = inside(image, "python", "-c", script)
    assert done.stdout.split() == ["1000", "None", "2.13.0+cpu"], done.stderr
    doctor = inside(image, "phantom", "doctor")
    assert doctor.returncode == 0, doctor.stdout + doctor.stderr
    assert inside(image, "phantom", "--version").stdout.startswith("phantom")


def test_ddp_takes_the_same_time_to_the_last_bit(job: Composed) -> None:
    for name in ("ddp.py", "tinymodel.py"):
        shutil.copy(ROOT / "tests" / "workloads" / name, job.folder)
    options = (*SIZE, "--timeline", "--steps", "5")
    job.write(*options, "--", "torchrun", "ddp.py")
    status, output = job.up()
    assert status == 0, output[-5000:]
    phantom(job.folder, "run", *options, "--out", "local", "--", "torchrun", "ddp.py")
    local = Composed(job.folder, "").folder / "local"
    assert len(job.summary["steps"]) == 5
    assert same_figures(job.summary, read_summary(local))
    for name in ("report.html", "timeline.pftrace"):
        assert (job.run / name).stat().st_size > 0, name
    # What the ranks print holds virtual times and memory too.
    logs = [f"ranks/{rank}.log" for rank in range(8)]
    assert "ms peak" in (job.run / logs[0]).read_text()
    assert [(job.run / name).read_text() for name in logs] == [(local / name).read_text() for name in logs]
    assert {path.stat().st_uid for path in job.run.rglob("*")} == {USER}
    assert "server-1 joined as node 1" in output
    # The same file again makes another folder.
    assert job.up()[0] == 0
    assert same_figures(job.summary, read_summary(job.results / "phantom-run-2"))


def test_torchtitan_takes_the_same_time_to_the_last_bit(job: Composed) -> None:
    make_assets(job.folder)
    command = [
        "torchrun", "-m", "torchtitan.train", "--model.name", "llama3", "--model.flavor", "debugmodel",
        "--model.hf_assets_path", "./tests/assets/tokenizer", "--training.dataset", "c4_test",
        "--training.steps", "3", "--training.seq_len", "256", "--training.local_batch_size", "4",
        "--lr_scheduler.warmup_steps", "1", "--parallelism.tensor_parallel_degree", "2",
    ]  # fmt: skip
    job.write(*SIZE, "--", *command)
    status, output = job.up()
    assert status == 0, output[-5000:]
    # In the same image: TorchTitan's start reads the clock once more (0.1 us) in others.
    volume = ("-v", f"{job.folder}:/job", "--shm-size", "1g", "--user", f"{USER}:{USER}", "--network", "none")
    words = (IMAGE, "phantom", "run", *SIZE, "--out", "local", "--", *command)
    alone = subprocess.run(["docker", "run", "--rm", *volume, *words], env=ENVIRONMENT, capture_output=True)
    assert alone.returncode == 0, alone.stderr[-3000:]
    assert len(job.summary["steps"]) == 3
    assert job.summary["steps"] == read_summary(job.folder / "local")["steps"]


def test_megatron_takes_the_same_time_to_the_last_bit(job: Composed) -> None:
    shutil.copy(ROOT / "examples" / "train_megatron.py", job.folder)
    size = ("--layers", "4", "--hidden", "256", "--heads", "4", "--sequence", "256", "--steps", "3")
    split = ("--tp", "2", "--pp", "2", "--sequence-parallel", "--distributed-optimizer")
    command = ("torchrun", "train_megatron.py", *size, *split)
    job.write(*SIZE, "-e", "CUDA_DEVICE_MAX_CONNECTIONS=1", "--", *command)
    status, output = job.up()
    assert status == 0, output[-5000:]
    phantom(job.folder, "run", *SIZE, "--out", "local", "--", *command, CUDA_DEVICE_MAX_CONNECTIONS="1")
    assert len(job.summary["steps"]) == 3
    assert same_figures(job.summary, read_summary(job.folder / "local"))


def test_a_plain_script_is_started_once_per_rank(job: Composed) -> None:
    shutil.copy(ROOT / "examples" / "train_gpt.py", job.folder)
    job.write(*SIZE, "train_gpt.py", "--steps", "2")
    status, output = job.up()
    assert status == 0, output[-5000:]
    phantom(job.folder, "run", *SIZE, "--out", "local", "train_gpt.py", "--steps", "2")
    assert same_figures(job.summary, read_summary(job.folder / "local"))


def test_the_status_of_a_failing_rank_comes_through(job: Composed) -> None:
    script = ENDLESS.replace("FAIL", "dist.get_rank() == 3 and sys.exit(7)")
    (job.folder / "train.py").write_text(script)
    job.write("-N", "2", "-G", "2", "train.py")
    status, output = job.up()
    assert status == 7, output[-5000:]
    assert "rank 3 ended with status 7" in output
    assert job.summary["status"] == "failed"
    assert len(job.summary["steps"]) >= 2


def test_a_lost_server_ends_the_run_and_is_named(job: Composed) -> None:
    (job.folder / "train.py").write_text(ENDLESS.replace("FAIL", ""))
    job.write("-N", "2", "-G", "2", "--", "torchrun", "train.py")
    process = job.start()
    job.wait_for("ranks/3.log", "four steps", process)
    job.compose("kill", "server-1")
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 128 + signal.SIGKILL, output[-5000:]
    assert "server-1 (node 1) is lost" in output
    assert job.summary["status"] == "failed"
    assert any("server-1 (node 1) is lost" in text for text in job.summary["warnings"])
    assert (job.run / "report.html").exists(), output[-5000:]


def test_ctrl_c_leaves_the_steps_so_far(job: Composed) -> None:
    (job.folder / "train.py").write_text(ENDLESS.replace("FAIL", ""))
    job.write("-N", "2", "-G", "2", "train.py")
    process = job.start()
    job.wait_for("ranks/3.log", "four steps", process)
    # One signal, as a terminal's: docker passes it on to its compose plugin where there is no terminal.
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=300)
    assert process.returncode != 0, output[-5000:]
    assert (job.run / "summary.json").exists(), output[-5000:]
    assert job.summary["status"] == "interrupted"
    assert len(job.summary["steps"]) >= 2
    assert (job.run / "report.html").exists(), output[-5000:]


def test_a_results_folder_of_somebody_else_is_said(job: Composed) -> None:
    (job.folder / "train.py").write_text("")
    job.write("-N", "1", "-G", "1", "train.py")
    job.results.chmod(0o555)
    status, output = job.up()
    assert status == 2, output[-5000:]
    assert "cannot write to the results folder" in output
