"""Ranks that are forks go on sharing their memory, and end as Python processes do all the same."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from interpose import build
from launch.conftest import Phantom

pytestmark = [
    pytest.mark.skipif(not build.is_current(), reason="extension not built: python -m interpose.build"),
    pytest.mark.timeout(180),
]

SMALL = """
import torch
torch.ones(1, device="cuda")
"""

LAST_THINGS = """
import atexit, sys, threading, time, weakref
import torch

class Late:
    def __del__(self):
        # Python's own end would have taken torch apart by now.
        print("del", torch.nn.functional.relu(torch.zeros(1)).item(), flush=True)

def later():
    time.sleep(0.2)
    import torch.nn.utils.parametrizations
    print("thread", torch.nn.Linear(1, 1).in_features, flush=True)

torch.ones(1, device="cuda")
late = Late()
unclosed = open("unclosed.txt", "w")
unclosed.write("written")
kept = set()
weakref.finalize(kept, print, "finalizer")
atexit.register(print, "atexit")
threading.Thread(target=later).start()
sys.stdout.write("no newline")
sys.exit(0 if len(sys.argv) < 2 else sys.argv[1])
"""


@pytest.fixture
def real(tmp_path: Path) -> Phantom:
    runner = Phantom(tmp_path, None, faked=False)
    runner.script("small.py", SMALL)
    runner.script("last.py", LAST_THINGS)
    return runner


def page_faults(runner: Phantom, *, ranks: int) -> int:
    """Page faults of a run, all its processes together."""
    process = runner.start("run", "-q", "-G", str(ranks), "--out", f"of-{ranks}", "small.py")
    try:
        _, status, usage = os.wait4(process.pid, 0)
    except BaseException:
        process.send_signal(signal.SIGTERM)
        raise
    process.returncode = os.waitstatus_to_exitcode(status)
    _, err = process.communicate()
    assert process.returncode == 0, err
    return usage.ru_minflt


def test_a_rank_copies_few_pages_from_start_to_end(real: Phantom) -> None:
    each = (page_faults(real, ranks=6) - page_faults(real, ranks=2)) / 4
    assert each < 20_000, (
        each
    )  # of 4 KiB; 12,000 when this was written, and 45,000 when modules were looked at


@pytest.mark.parametrize("status", ["0", "a message"])
def test_what_a_script_leaves_to_its_end_is_done(real: Phantom, status: str) -> None:
    arguments = () if status == "0" else (status,)
    process = real.start("run", "-q", "-G", "1", "--out", "out", "last.py", *arguments)
    _, err = process.communicate(timeout=120)
    log = (real.folder / "out" / "ranks" / "0.log").read_text()
    assert process.returncode == (0 if status == "0" else 1), err + log
    assert (real.folder / "unclosed.txt").read_text() == "written"
    lines = sorted(log.replace("no newline", "no newline\n").splitlines())
    wanted = ["atexit", "del 0.0", "finalizer", "no newline", "thread 1"]
    assert [line for line in lines if line in wanted] == wanted, log
    assert "Exception" not in log
    assert "Traceback" not in log
    assert ("a message" in log) is (status == "a message")
