"""What is left, and who is blamed, after one of a run's processes was killed or stopped."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from launch.conftest import Phantom, wait_until_gone

STEPPING = """
import os, sys, threading, torch, torch.distributed as dist
dist.init_process_group("gloo")
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
with open(f"pid-{os.environ['RANK']}.part", "w") as file:
    file.write(str(os.getpid()))
os.rename(f"pid-{os.environ['RANK']}.part", f"pid-{os.environ['RANK']}")
threading.Event().wait(600)
"""


@pytest.fixture
def started(phantom: Phantom) -> Callable[[], tuple[Any, dict[str, int]]]:
    """Starts a run of two ranks with a simulator of its own; returns it with the pids after three steps."""

    def start() -> tuple[Any, dict[str, int]]:
        phantom.simulator = None
        script = phantom.script("train.py", STEPPING)
        run = phantom.start("run", "--cluster", "h100-dgx", "-G", "2", "--out", "out", script)
        pids = {f"rank {rank}": int(phantom.wait_for(f"pid-{rank}")) for rank in (0, 1)}
        for child in Path(f"/proc/{run.pid}/task/{run.pid}/children").read_text().split():
            words = Path(f"/proc/{child}/cmdline").read_text().split("\0")
            pids["simulator" if "serve" in words else "fork server"] = int(child)
        deadline_s = time.monotonic() + 60
        while len(steps(phantom)) < 2 and time.monotonic() < deadline_s:
            time.sleep(0.05)  # the results so far are on disk a moment after the steps
        return run, pids

    return start


def summary(phantom: Phantom) -> dict[str, Any]:
    file = phantom.folder / "out" / "summary.json"
    return dict(json.loads(file.read_text())) if file.exists() else {}


def steps(phantom: Phantom) -> list[Any]:
    return list(summary(phantom).get("steps", []))


@pytest.mark.parametrize(
    ("victim", "status", "words", "not_blamed"),
    [
        ("simulator", 4, "the simulator failed: its process ended (killed by signal 9)", "rank 0 was killed"),
        (
            "fork server",
            4,
            "the process that starts the ranks ended, and they with it (killed by SIGKILL)",
            "rank 0 was",
        ),
        ("rank 1", 128 + 9, "rank 1 was killed by SIGKILL", "rank 0 was killed"),
    ],
)
def test_a_kill_keeps_the_steps_and_names_the_culprit(
    phantom: Phantom, started: Callable[[], Any], victim: str, status: int, words: str, not_blamed: str
) -> None:
    run, pids = started()
    os.kill(pids[victim], signal.SIGKILL)
    _, err = run.communicate(timeout=60)
    assert run.returncode == status, err
    assert words in err
    assert not_blamed not in err
    assert len(steps(phantom)) >= 2
    assert summary(phantom)["status"] == "failed"
    assert wait_until_gone(*pids.values()) == []


def test_killing_the_run_keeps_its_steps(phantom: Phantom, started: Callable[[], Any]) -> None:
    run, pids = started()
    run.kill()
    run.communicate(timeout=60)
    assert len(steps(phantom)) >= 2
    assert summary(phantom)["status"] == "interrupted"
    assert any("did not end in order" in text for text in summary(phantom)["warnings"])
    assert wait_until_gone(*pids.values()) == []


@pytest.mark.parametrize("victim", ["simulator", "fork server"])
def test_a_stopped_process_does_not_keep_a_run_from_ending(
    phantom: Phantom, started: Callable[[], Any], victim: str
) -> None:
    run, pids = started()
    os.kill(pids[victim], signal.SIGSTOP)
    run.send_signal(signal.SIGINT)
    began_s = time.monotonic()
    _, err = run.communicate(timeout=60)
    assert time.monotonic() - began_s < 30  # 10 s on a quiet machine
    assert run.returncode == 128 + signal.SIGINT, err
    assert "interrupted by SIGINT" in err
    assert len(steps(phantom)) >= 2
    assert wait_until_gone(*pids.values()) == []
