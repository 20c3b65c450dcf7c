"""The whole chain: real extension, real simulator, unmodified scripts."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import venv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgpack
import pytest

from interpose import build
from launch.conftest import ROOT, Phantom, processes_named, wait_until_gone

pytestmark = pytest.mark.skipif(
    not build.is_current(), reason="extension not built: python -m interpose.build"
)

TRAIN = """
import os, sys, time, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

def main():
    local = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local)
    dist.init_process_group("nccl")
    host = dist.new_group(backend="gloo")
    torch.manual_seed(0)
    layers = torch.nn.Sequential(torch.nn.Linear(512, 512), torch.nn.Linear(512, 8))
    model = DistributedDataParallel(layers.cuda())
    optimizer = torch.optim.AdamW(model.parameters())
    data = TensorDataset(torch.randn(64, 512), torch.randint(0, 8, (64,)))
    workers = int(os.environ.get("WORKERS", "0"))
    loader = DataLoader(data, batch_size=16, num_workers=workers, pin_memory=workers > 0)
    for step, (x, y) in enumerate(loader):
        started = time.perf_counter()
        loss = torch.nn.functional.cross_entropy(model(x.cuda(non_blocking=True)), y.cuda(non_blocking=True))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        torch.cuda.synchronize()
        took = time.perf_counter() - started
        count = torch.ones(1)
        dist.all_reduce(count, group=host)
        if step == 2:
            torch.save(model.state_dict(), f"checkpoint-{dist.get_rank()}.pt")
        print(f"step {step} took {took!r} ranks {int(count)}", flush=True)
    dist.destroy_process_group()

if __name__ == "__main__":
    main()
"""


@pytest.fixture
def real(tmp_path: Path) -> Iterator[Phantom]:
    """`phantom` with nothing faked."""
    (tmp_path / "site").mkdir()
    runner = Phantom(tmp_path, None, faked=False)
    yield runner
    for process in runner.started:
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
            process.communicate()


def summary(runner: Phantom, out: str) -> dict[str, Any]:
    return dict(json.loads((runner.folder / out / "summary.json").read_text()))


def virtual(runner: Phantom, out: str) -> tuple[list[float], list[Any]]:
    """What must not depend on anything but the job: step times and the accounting of every rank."""
    found = summary(runner, out)
    return [step["virtual_s"] for step in found["steps"]], found["ranks"]


def test_every_way_to_start_a_job_gives_the_same_times_also_under_load(real: Phantom) -> None:
    script = real.script("train.py", TRAIN)
    first = real.run("run", "-N", "2", "-G", "2", "--out", "a", script, WORKERS="2")
    assert first.returncode == 0, first.stderr
    stop = threading.Event()
    load = threading.Thread(target=lambda: [sum(range(10_000)) for _ in iter(stop.is_set, True)])
    load.start()
    try:
        second = real.run("run", "-N", "2", "-G", "2", "--out", "b", "--", "torchrun", script, WORKERS="2")
    finally:
        stop.set()
        load.join()
    assert second.returncode == 0, second.stderr
    steps, ranks = virtual(real, "a")
    assert len(steps) == 4
    assert all(0 < step < 1 for step in steps)
    assert len(set(steps[1:])) <= 3
    assert (steps, ranks) == virtual(real, "b")
    # The script's own clock is the virtual one: it prints the same digits.
    assert [line for line in first.stdout.splitlines() if line.startswith("step ")] == [
        line for line in second.stdout.splitlines() if line.startswith("step ")
    ]
    assert "ranks 4" in first.stdout


def test_a_thread_that_copies_to_the_host_does_not_depend_on_load(real: Phantom) -> None:
    text = TRAIN.replace(
        "        count = torch.ones(1)\n",
        "        threading.Thread(target=fetch, args=(model,)).start()\n        count = torch.ones(1)\n",
    )
    text = text.replace("import os,", "import threading, os,").replace(
        "def main():",
        """def fetch(model):
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for parameter in model.parameters():
            parameter.detach().to("cpu", non_blocking=True)
        stream.synchronize()

def main():""",
    )
    script = real.script("train.py", text)
    found = []
    for out, load in (("a", 0), ("b", 3)):
        burners = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(load)]
        try:
            done = real.run("run", "-G", "2", "--out", out, script, WORKERS="1")
        finally:
            for burner in burners:
                burner.kill()
                burner.wait()
        assert done.returncode == 0, done.stderr
        assert not [text for text in summary(real, out)["warnings"] if "clock" in text]
        found.append((*virtual(real, out), summary(real, out)["collectives"]))
    assert found[0] == found[1]
    assert any(row["kind"] == "d2h" for row in found[0][2])


def test_a_script_that_spawns_its_ranks(real: Phantom) -> None:
    text = TRAIN.replace(
        'if __name__ == "__main__":\n    main()',
        """
def rank(local, per_node):
    node = int(os.environ["PHANTOM_NODE"])
    os.environ.update(LOCAL_RANK=str(local), RANK=str(node * per_node + local), WORLD_SIZE=str(2 * per_node))
    main()

if __name__ == "__main__":
    torch.multiprocessing.spawn(rank, args=(2,), nprocs=2)
""",
    )
    done = real.run(
        "run", "-N", "2", "-G", "2", "--launch", "node", "--out", "a", real.script("train.py", text)
    )
    assert done.returncode == 0, done.stderr
    assert len(summary(real, "a")["steps"]) == 4
    assert {rank["rank"] for rank in summary(real, "a")["ranks"]} == {0, 1, 2, 3}


def test_two_processes_that_run_as_the_same_rank_are_told(real: Phantom) -> None:
    text = """
import os, torch, torch.distributed as dist
dist.init_process_group("gloo", rank=0, world_size=2, init_method="file:///tmp/never-used")
"""
    done = real.run("run", "-G", "2", "--out", "a", real.script("train.py", text))
    assert done.returncode != 0
    assert "two processes run as the same rank" in done.stderr
    assert "--launch node" in done.stderr


AT_EXIT = """
import atexit, sys, torch, torch.distributed as dist
dist.init_process_group("nccl")
try:
    import triton._C.libtriton  # lists what a process does not free
except ImportError:
    pass
class Global:
    def __del__(self):
        print("freed", file=sys.stderr, flush=True)
kept = Global()
atexit.register(print, "at exit", flush=True)
sys.exit(3)
"""


def test_a_rank_ends_as_python_does_and_says_nothing_of_its_own(real: Phantom) -> None:
    done = real.run("run", "-G", "1", "--out", "out", real.script("train.py", AT_EXIT))
    assert done.returncode == 3
    assert (real.folder / "out" / "ranks" / "0.log").read_text() == "at exit\nfreed\n"


def test_a_rank_that_contradicts_its_place_is_told(real: Phantom) -> None:
    text = """
import torch, torch.distributed as dist
torch.cuda.set_device(0)
dist.init_process_group("gloo", rank=0, world_size=1)
"""
    done = real.run("run", "-G", "2", "--out", "a", real.script("train.py", text))
    assert done.returncode != 0
    assert "started as rank 1 of 2" in done.stderr
    assert "--launch node" in done.stderr


def test_another_virtual_environment_than_phantoms(real: Phantom, tmp_path: Path) -> None:
    venv.create(tmp_path / "other", symlinks=True)
    site = next((tmp_path / "other").glob("lib/python*/site-packages"))
    own = next(path for path in map(Path, sys.path) if (path / "torch").is_dir())
    (site / "torch.pth").write_text(f"{own}\n")
    python = str(tmp_path / "other" / "bin" / "python")
    done = real.run("run", "-G", "2", "--out", "a", "--", python, real.script("train.py", TRAIN))
    assert done.returncode == 0, done.stderr
    assert len(summary(real, "a")["steps"]) == 4
    assert str(site) in subprocess.run(
        [sys.executable, "-m", "phantom.cli.main", "doctor", "--python", python],
        capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)},
    ).stdout  # fmt: skip


def test_a_collective_that_some_ranks_never_call_is_a_deadlock(real: Phantom) -> None:
    text = """
import os, torch, torch.distributed as dist
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl")
total = torch.ones(1, device="cuda")
if dist.get_rank() == 0:
    dist.all_reduce(total)
    print(total.item())
elif dist.get_rank() == 1:
    dist.recv(total, src=0)
    torch.cuda.synchronize()
"""
    # The ranks die of the ABORT with status 1; what the job ended of is the deadlock.
    for form in ((), ("--", "torchrun")):
        out = f"a{len(form)}"
        done = real.run("run", "-G", "3", "--out", out, *form, real.script("train.py", text))
        assert done.returncode == 3, done.stderr
        assert "all_reduce #0" in done.stderr
        assert "waits for ranks 1, 2, which have not called it" in done.stderr
        assert "message #0 from rank 0 to rank 1" in done.stderr
        assert summary(real, out)["status"] == "deadlock"


def test_collectives_that_differ_between_ranks_fail_the_job_and_show_both_sides(real: Phantom) -> None:
    text = """
import os, torch, torch.distributed as dist
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl")
dist.all_reduce(torch.ones(8 + dist.get_rank(), device="cuda"))
torch.cuda.synchronize()
"""
    done = real.run("run", "-G", "2", "--out", "a", real.script("train.py", text))
    assert done.returncode == 1, done.stderr
    assert "rank 0: all_reduce of 32 bytes of float32" in done.stderr
    assert "rank 1: all_reduce of 36 bytes of float32" in done.stderr
    assert summary(real, "a")["status"] == "failed"


FAILING = """
import os, signal, sys, torch, torch.distributed as dist
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl")
try:
    sys.exit(9)
except SystemExit:
    pass
if dist.get_rank() == 1:
    FAIL
dist.all_reduce(torch.ones(8, device="cuda"))
torch.cuda.synchronize()
"""


def test_the_status_of_sys_exit_is_the_jobs_and_no_deadlock(real: Phantom) -> None:
    script = real.script("train.py", FAILING.replace("FAIL", "sys.exit(7)"))
    for form in ((), ("--", "python", "-X", "dev")):
        done = real.run("run", "-G", "2", "--out", f"a{len(form)}", *form, script)
        assert done.returncode == 7, done.stderr
        assert "rank 1 ended with status 7" in done.stderr
    caught = real.script("caught.py", FAILING.replace("FAIL", "pass"))
    done = real.run("run", "-G", "2", "--out", "b", "--", "python", "-X", "dev", caught)
    assert done.returncode == 0, done.stderr


def test_a_signal_that_a_rank_gets_is_not_swallowed(real: Phantom) -> None:
    script = real.script("train.py", FAILING.replace("FAIL", "os.kill(os.getpid(), signal.SIGSEGV)"))
    done = real.run("run", "-G", "2", "--out", "a", script)
    assert done.returncode == 128 + signal.SIGSEGV, done.stderr
    assert "rank 1 was killed by SIGSEGV" in done.stderr


def test_under_a_launcher_the_rank_that_was_the_cause_is_named(real: Phantom) -> None:
    script = real.script("train.py", FAILING.replace("FAIL", "raise ValueError('no such data')"))
    done = real.run("run", "-G", "2", "--out", "a", "--", "torchrun", script)
    assert done.returncode == 1, done.stderr
    assert "peer-lost: rank 1 is gone" in done.stderr


def test_running_out_of_memory_is_the_jobs_failure_and_named(real: Phantom) -> None:
    text = """
import os, torch, torch.distributed as dist
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl")
kept = [torch.empty(1 << 30, device="cuda") for _ in range(100)]
"""
    done = real.run("run", "-G", "2", "--out", "a", real.script("train.py", text))
    assert done.returncode == 1
    assert "CUDA out of memory" in done.stderr
    found = summary(real, "a")
    assert found["status"] == "oom"
    assert found["ranks"][0]["oom"]


def test_what_the_backward_pass_holds_beside_gradients_is_no_gradient(real: Phantom) -> None:
    """The logits' gradient of a loss is a temporary: sharding the gradients would not save it."""
    text = """
import torch
model = torch.nn.Linear(1024, 32768).cuda()
torch.optim.SGD(model.parameters(), 0.1)
model(torch.ones(1 << 17, 1024, device="cuda")).float().softmax(-1).log().square().sum().backward()
"""
    done = real.run("run", "-G", "1", "--out", "a", real.script("train.py", text))
    found = summary(real, "a")
    assert found["status"] == "oom", done.stderr
    (fault,) = found["faults"]
    assert sum(fault["holders"].values()) == fault["allocated_bytes"]
    assert fault["holders"]["parameters"] == 4 * (1024 * 32768 + 32768)
    assert fault["holders"]["activations"] > 32 << 30
    assert fault["holders"].get("gradients", 0) == 0


def test_the_simulator_killed_is_status_4_and_leaves_nothing(real: Phantom) -> None:
    text = TRAIN.replace(
        "optimizer.zero_grad()", "open('started', 'w').write('x'); time.sleep(0); threading.Event().wait(600)"
    )
    script = real.script("train.py", text.replace("import os,", "import threading, os,"))
    process = real.start("run", "-G", "2", "--out", "a", script)
    real.wait_for("started")
    (simulator,) = [
        pid for pid in processes_named("phantom.cli.main", "serve") if _parent(pid) == process.pid
    ]
    os.kill(simulator, signal.SIGKILL)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 4, err
    assert "killed by signal 9" in err
    assert wait_until_gone(*processes_named(str(real.folder / "a"))) == []
    assert summary(real, "a")["status"] == "failed"


def test_a_busy_port_is_bad_usage(real: Phantom) -> None:
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        done = real.run("serve", "--listen", f"127.0.0.1:{taken.getsockname()[1]}")
    assert done.returncode == 2
    assert "cannot listen on 127.0.0.1:" in done.stderr


def test_one_server_takes_one_run_after_another(real: Phantom) -> None:
    server = real.start("serve", "--listen", "127.0.0.1:0")
    assert server.stdout is not None
    address = server.stdout.readline().split()[-1]
    script = real.script("train.py", TRAIN)
    for out in ("a", "b"):
        done = real.run("run", "--server", address, "-G", "2", "--steps", "2", "--out", out, script)
        assert done.returncode == 0, done.stderr
    assert virtual(real, "a") == virtual(real, "b")
    assert len(virtual(real, "a")[0]) == 2
    # Nothing is missing of what a run with a simulator of its own records.
    assert real.run("run", "-G", "2", "--steps", "2", "--out", "own", script).returncode == 0
    recorded = [
        (real.folder / out / "spool" / "collectives.msgpack").read_bytes() for out in ("a", "b", "own")
    ]
    # The order of the entries follows that in which real messages came.
    entries = [sorted(map(repr, msgpack.Unpacker(io.BytesIO(record)))) for record in recorded]
    assert entries[0] == entries[1] == entries[2]
    refused = real.run("run", "--server", address, "--cluster", "a100-dgx", "-G", "2", script)
    assert refused.returncode == 2
    assert "serves cluster h100-dgx" in refused.stderr
    refused = real.run("run", "--server", address, "--kernels", "predict", "-G", "2", script)
    assert refused.returncode == 2
    assert "give it to `phantom serve`" in refused.stderr
    started = time.monotonic()
    server.terminate()
    assert server.wait(timeout=20) == 0
    assert time.monotonic() - started < 20


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


STUCK = """
import subprocess, torch, torch.distributed as dist
dist.init_process_group("nccl")
if dist.get_rank() == 1:
    subprocess.run(["sleep", "600"])
dist.all_reduce(torch.ones(4, device="cuda"))
torch.cuda.synchronize()
"""


def test_a_hanging_rank_is_named_after_5_s_and_when_interrupted(real: Phantom) -> None:
    process = real.start("run", "-G", "2", "--out", "out", real.script("train.py", STUCK))
    assert process.stderr is not None
    said = ""
    while "waiting for rank 1, whose clock is at" not in said:
        said = process.stderr.readline()
        assert said, "ended without a word of what was awaited"
    assert "nothing moved for" in said
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGINT
    assert re.search(r"interrupted by SIGINT \(nothing moved for \d+ s, waiting for rank 1, whose clock", err)


def test_a_store_that_does_not_exist_is_told(real: Phantom) -> None:
    script = real.script("train.py", "import torch; torch.ones(2, device='cuda')")
    done = real.run("run", "-G", "1", "--store", "typo.sqlite", "--out", "out", script)
    assert done.returncode == 0, done.stderr
    assert "--store typo.sqlite does not exist: no kernel's cost is taken from it" in done.stderr
