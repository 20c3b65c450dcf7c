"""Ranks that are forks go on sharing their memory, and end as Python processes do all the same."""

from __future__ import annotations

import json
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

# Held by modules from before the fork, which nobody takes apart: a cache of `typing`, a handler of `logging`,
# a function of torch.
HELD = """
import logging, time, typing
import torch

class Config:
    def copy(self): return Config()

class Handler(logging.Handler): pass
class Late:
    def __del__(self):
        print("del", name(self), time.time() > 0, torch.nn.functional.relu(torch.zeros(1)).item())

def name(value): return type(value).__name__
def configured(config: typing.Optional[Config]): return name(config)
torch.nn.functional.relu6 = configured
logging.getLogger().addHandler(Handler())
torch.ones(1, device="cuda")
late = Late()
unclosed = open("unclosed.txt", "w")
unclosed.write("written")
"""

# isinstance asks `__class__` of what is no instance by its type: code that reads variables dropped by then.
ASKS_AT_THE_END = """
import typing
import torch

class Meta(type):
    @property
    def __class__(cls): return answer()

class Proxy:
    @property
    def __class__(self): return answer()

class Config(metaclass=Meta):
    def copy(self): return Config
def answer(): return NAMES["answer"]
def held(config: typing.Optional[Proxy]): return NAMES
NAMES = {"answer": str}
torch.nn.functional.relu6 = held
proxy = Proxy()
torch.ones(1, device="cuda")
unclosed = open("unclosed.txt", "w")
unclosed.write("written")
"""

MOVED = """
import os
import torch
torch.ones(1, device="cuda")
os.makedirs("elsewhere")
os.chdir("elsewhere")
print("starts with", open(__file__).read().split()[:2], __annotations__)
raise ValueError
"""


AS_PYTHON_STARTS = """
import ctypes, os, sys, threading, time
import torch
torch.ones(1, device="cuda")
reader, writer = os.pipe()
os.close(reader)
try:
    os.write(writer, b"nobody listens")
except BrokenPipeError:
    print("broken pipe", flush=True)
# A thread that reads from a stream of C holds its lock.
libc = ctypes.CDLL(None)
libc.fdopen.restype = ctypes.c_void_p
silent, _ = os.pipe()
stream = libc.fdopen(silent, b"r")
threading.Thread(target=libc.fgetc, args=(ctypes.c_void_p(stream),), daemon=True).start()
time.sleep(0.2)
libc.printf(b"unflushed text of C")
sys.exit(256)
"""


@pytest.fixture
def real(tmp_path: Path) -> Phantom:
    runner = Phantom(tmp_path, None, faked=False)
    runner.script("small.py", SMALL)
    runner.script("last.py", LAST_THINGS)
    runner.script("starts.py", AS_PYTHON_STARTS)
    runner.script("held.py", HELD)
    runner.script("moved.py", MOVED)
    runner.script("asks.py", ASKS_AT_THE_END)
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
    # Of 4 KiB; 12,000 when this was written, and 45,000 when the modules were looked at.
    assert each < 20_000, each


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


def test_variables_that_inherited_modules_keep_alive_are_let_go(real: Phantom) -> None:
    process = real.start("run", "-q", "-G", "1", "--out", "out", "held.py")
    _, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    assert (real.folder / "unclosed.txt").read_text() == "written"
    assert (real.folder / "out" / "ranks" / "0.log").read_text() == "del Late True 0.0\n"


def test_letting_go_runs_no_code_of_what_it_lets_go(real: Phantom) -> None:
    process = real.start("run", "-q", "-G", "1", "--out", "out", "asks.py")
    _, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    assert (real.folder / "unclosed.txt").read_text() == "written"
    assert (real.folder / "out" / "ranks" / "0.log").read_text() == ""


def test_a_script_that_leaves_its_folder_finds_itself(real: Phantom) -> None:
    process = real.start("run", "-q", "-G", "1", "--out", "out", "moved.py")
    process.communicate(timeout=120)
    assert process.returncode == 1
    log = (real.folder / "out" / "ranks" / "0.log").read_text()
    assert "starts with ['import', 'os'] {}" in log
    assert f'File "{real.folder / "moved.py"}", line 8' in log


def test_signals_streams_of_c_and_status_are_those_of_a_python_process(real: Phantom) -> None:
    process = real.start("run", "-q", "-G", "1", "--out", "out", "starts.py")
    _, err = process.communicate(timeout=120)
    log = (real.folder / "out" / "ranks" / "0.log").read_text()
    assert process.returncode == 0, err + log  # the system keeps 8 bits of 256
    assert log == "broken pipe\nunflushed text of C"
    assert json.loads((real.folder / "out" / "summary.json").read_text())["status"] == "ok"
