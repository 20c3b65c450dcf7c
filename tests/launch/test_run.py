"""`phantom run` from the command line to the exit status, with real processes."""

from __future__ import annotations

import json
import os
import signal
import time

import pytest

from launch.conftest import Phantom, wait_until_gone
from launch.fake_simulator import FakeSimulator, hello_of
from phantom.wire import schema as wire
from phantom.wire.fields import AbortKind

HELLO = """
import os, sys, torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.ones(1)
dist.all_reduce(total)
def annotated(tensor: torch.Tensor) -> None: ...
# DDP compares the annotations of a hook with types; strings would mean a __future__ import leaked in here.
assert annotated.__annotations__["tensor"] is torch.Tensor
print("args", sys.argv[1:], "name", __name__, "file", os.path.basename(__file__), "total", int(total))
model = torch.nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
print("end")
dist.destroy_process_group()
"""

WAITING = """
import os, subprocess, sys, threading, torch, torch.distributed as dist
dist.init_process_group("gloo")
if os.environ["RANK"] == "0":
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
    with open("pids.part", "w") as file:
        file.write(f"{os.getpid()} {child.pid}")
    os.rename("pids.part", "pids")
threading.Event().wait(600)
"""


def test_ranks_run_the_script_as_python_would(phantom: Phantom, simulator: FakeSimulator) -> None:
    script = phantom.script("train.py", HELLO)
    done = phantom.run("run", "-N", "2", "-G", "2", "--out", "out", script, "--lr", "1")
    assert done.returncode == 0, done.stderr
    assert "args ['--lr', '1'] name __main__ file train.py total 4" in done.stdout
    assert done.stdout.count("total 4") == 1
    for rank in range(4):
        assert "end" in (phantom.folder / "out" / "ranks" / f"{rank}.log").read_text()
    places = [hello_of(simulator, rank) for rank in range(4)]
    assert [(place.local_rank, place.node, place.world_size) for place in places] == [
        (0, 0, 4), (1, 0, 4), (0, 1, 4), (1, 1, 4)]  # fmt: skip
    assert simulator.exited == {0: 0, 1: 0, 2: 0, 3: 0}
    summary = json.loads((phantom.folder / "out" / "summary.json").read_text())
    assert summary["status"] == "ok"
    assert len(summary["steps"]) == 3
    assert summary["command"] == ["train.py", "--lr", "1"]


@pytest.mark.parametrize(
    ("option", "value", "text"),
    [("steps", "5:2", "'5:2' holds no step"), ("steps", "x", "not a range"), ("ranks", "2", "ranks 0 to 1")],
)
def test_a_wrong_range_to_record_is_told_before_anything_is_made(
    phantom: Phantom, option: str, value: str, text: str
) -> None:
    script = phantom.script("train.py", HELLO)
    done = phantom.run("run", "-G", "2", f"--timeline-{option}", value, "--out", "out", script)
    assert done.returncode == 2
    assert f"--timeline-{option}: " in done.stderr
    assert text in done.stderr
    assert not (phantom.folder / "out").exists()


@pytest.mark.parametrize("more", [[], ["-v"], ["-q"]])
def test_with_json_standard_output_is_the_summary_alone(phantom: Phantom, more: list[str]) -> None:
    done = phantom.run("run", "-G", "2", "--json", *more, "--out", "out", phantom.script("train.py", HELLO))
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == json.loads((phantom.folder / "out" / "summary.json").read_text())
    assert done.stderr.count("total 2") == {"-v": 2, "-q": 0, "": 1}["".join(more)]
    assert "results in" in done.stderr


def test_a_given_number_of_steps_ends_the_job(phantom: Phantom, simulator: FakeSimulator) -> None:
    script = phantom.script("train.py", HELLO)
    done = phantom.run("run", "-G", "2", "--steps", "2", "--out", "out", script)
    assert done.returncode == 0, done.stderr
    assert "end" not in done.stdout
    assert [record.index for record in simulator.records[1] if isinstance(record, wire.Step)] == [0, 1]


def test_torchrun_is_started_once_per_node(phantom: Phantom, simulator: FakeSimulator) -> None:
    script = phantom.script("train.py", HELLO)
    done = phantom.run("run", "-N", "2", "-G", "2", "--out", "out", "--", "torchrun", script)
    assert done.returncode == 0, done.stderr
    assert sorted(simulator.records) == [0, 1, 2, 3]
    assert [hello_of(simulator, rank).node for rank in range(4)] == [0, 0, 1, 1]
    assert "total 4" in done.stdout
    assert "total 4" in (phantom.folder / "out" / "ranks" / "3.log").read_text()


def test_a_failing_rank_ends_the_job_with_its_status_and_words(phantom: Phantom) -> None:
    script = phantom.script(
        "train.py",
        WAITING.replace("threading.Event", "1 / (int(os.environ['RANK']) - 1)\nthreading.Event"),
    )
    done = phantom.run("run", "-G", "3", "--out", "out", script)
    assert done.returncode == 1
    assert "rank 1 ended with status 1" in done.stderr
    assert "ZeroDivisionError" in done.stderr
    assert json.loads((phantom.folder / "out" / "summary.json").read_text())["status"] == "failed"
    assert wait_until_gone(*map(int, phantom.wait_for("pids").split())) == []


def test_exit_status_of_the_job_is_passed_on(phantom: Phantom) -> None:
    script = phantom.script("train.py", WAITING.replace("threading.Event().wait(600)", "sys.exit(7)"))
    assert phantom.run("run", "-G", "1", "--out", "out", script).returncode == 7


def test_a_killed_rank_ends_the_job(phantom: Phantom) -> None:
    process = phantom.start("run", "-G", "2", "--out", "out", phantom.script("train.py", WAITING))
    pids = [int(text) for text in phantom.wait_for("pids").split()]
    os.kill(pids[0], signal.SIGKILL)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGKILL
    assert "rank 0 was killed by SIGKILL" in err
    assert wait_until_gone(*pids) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_leaves_a_partial_summary_and_no_process(
    phantom: Phantom, number: signal.Signals
) -> None:
    process = phantom.start("run", "-G", "2", "--out", "out", phantom.script("train.py", WAITING))
    pids = [int(text) for text in phantom.wait_for("pids").split()]
    process.send_signal(number)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 128 + number
    assert f"interrupted by {number.name}" in err
    assert json.loads((phantom.folder / "out" / "summary.json").read_text())["status"] == "interrupted"
    assert wait_until_gone(*pids) == []


def test_killing_phantom_itself_kills_the_ranks(phantom: Phantom) -> None:
    process = phantom.start("run", "-G", "2", "--out", "out", phantom.script("train.py", WAITING))
    rank = int(phantom.wait_for("pids").split()[0])
    child = int(phantom.wait_for("pids").split()[1])
    process.kill()
    process.communicate()
    assert wait_until_gone(rank) == []
    os.kill(child, signal.SIGKILL)  # a session of its own, and nobody is left to look for it


def test_a_simulator_that_shuts_down_in_order_is_status_4(phantom: Phantom, simulator: FakeSimulator) -> None:
    process = phantom.start("run", "-G", "2", "--out", "out", phantom.script("train.py", WAITING))
    phantom.wait_for("pids")
    simulator.notices.put(None)  # Watch ends without an error
    _, err = process.communicate(timeout=60)
    assert process.returncode == 4, err
    assert "the simulator failed: it shut down" in err


def test_a_simulator_that_goes_away_is_status_4(phantom: Phantom, simulator: FakeSimulator) -> None:
    process = phantom.start("run", "-G", "2", "--out", "out", phantom.script("train.py", WAITING))
    pids = [int(text) for text in phantom.wait_for("pids").split()]
    time.sleep(0.2)
    simulator._server.stop(0)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 4, err
    assert "the simulator failed" in err
    assert wait_until_gone(*pids) == []
    assert json.loads((phantom.folder / "out" / "summary.json").read_text())["status"] == "failed"


def test_a_deadlock_notice_is_status_3(phantom: Phantom, simulator: FakeSimulator) -> None:
    process = phantom.start("run", "-G", "2", "--out", "out", phantom.script("train.py", WAITING))
    phantom.wait_for("pids")
    simulator.notices.put({"abort": {"kind": "deadlock", "message": "rank 0 waits for rank 1 in all_reduce"}})
    _, err = process.communicate(timeout=60)
    assert process.returncode == 3
    assert "deadlock: rank 0 waits for rank 1 in all_reduce" in err


def test_a_job_that_never_imports_torch_is_status_2(phantom: Phantom) -> None:
    done = phantom.run("run", "-G", "1", "--out", "out", "--", "bash", "-c", "echo nothing")
    assert done.returncode == 2
    assert "no process of the job was attached" in done.stderr


def test_a_job_without_ranks_is_status_2(phantom: Phantom) -> None:
    script = phantom.script("train.py", "import torch\nprint('hello')\n")
    done = phantom.run("run", "-G", "1", "--out", "out", script)
    assert done.returncode == 2
    assert "no process became a rank" in done.stderr
    assert "hello" in done.stdout


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["missing.py"], "script not found: missing.py"),
        (["-N", "0", "train.py"], "-N/--nodes must be at least 1, got 0"),
        (["-G", "0", "train.py"], "-G/--gpus-per-node must be at least 1, got 0"),
        (["-G", "9", "train.py"], "has 8 GPUs"),
        (["--cluster", "no-such", "train.py"], "no-such"),
        (["--out", "site", "train.py"], "--out site exists"),
        (["--steps", "0", "train.py"], "--steps"),
        ([], "no command"),
        (["--server", "127.0.0.1:9", "train.py"], "no simulator answers at 127.0.0.1:9"),
    ],
)
def test_bad_usage_is_said_before_anything_starts(phantom: Phantom, args: list[str], words: str) -> None:
    phantom.script("train.py", "")
    if "--server" in args:
        phantom.simulator = None
    done = phantom.run("run", *args)
    assert done.returncode == (4 if "--server" in args else 2)
    assert words in done.stderr
    assert done.stdout == ""


def test_children_of_a_rank_are_no_ranks(phantom: Phantom, simulator: FakeSimulator) -> None:
    text = """
import os, subprocess, sys, torch, torch.distributed as dist
dist.init_process_group("gloo")
code = "import torch; import interpose._C as C; C.ensure_session(); print('child')"
print(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout)
if os.fork() == 0:
    import interpose._C as C
    C.ensure_session()
    os._exit(0)
os.wait()
"""
    done = phantom.run("run", "-G", "1", "--out", "out", phantom.script("train.py", text))
    assert done.returncode == 0, done.stderr
    assert "child" in done.stdout
    assert len([record for record in simulator.records[0] if isinstance(record, wire.Hello)]) == 1


def test_an_abort_reaches_the_ranks(phantom: Phantom, simulator: FakeSimulator) -> None:
    simulator.abort_at_hello = wire.Abort(AbortKind.mismatch, "rank 1 called broadcast")
    text = "import torch, torch.distributed as dist\ndist.init_process_group('gloo')\n" + (
        "import interpose._C as C\nC.sync(5)\n"
    )
    done = phantom.run("run", "-G", "1", "--out", "out", phantom.script("train.py", text))
    assert done.returncode == 1
    assert "mismatch: rank 1 called broadcast" in done.stderr
