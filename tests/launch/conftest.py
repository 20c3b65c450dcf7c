"""Runs of real processes against a fake simulator and a fake extension: what is tested is the launcher."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from launch.fake_simulator import FakeSimulator
from phantom.wire.token import VARIABLE

TOKEN = "what-admits-nodes-and-runs"

ROOT = Path(__file__).resolve().parents[2]

# Put on PYTHONPATH: every attached process takes the fakes for the real modules.
SITECUSTOMIZE = f"""
import os, sys
if "PHANTOM" in os.environ:
    sys.path.append({str(ROOT / "tests" / "interpose_python")!r})
    import fake_extension
    sys.modules["interpose._C"] = fake_extension.FakeExtension()
    sys.modules["interpose.cuda.surface"] = fake_extension.cuda_surface()
    real = ("hooks.distributed", "hooks.memory_tags", "hooks.routing", "triton.install")
    for name in real:  # they need the real extension
        sys.modules["interpose." + name] = fake_extension.without_effect("interpose." + name)
"""

# `phantom` as users type it, with an interpreter check that does not ask for a built extension.
PRETEND_BUILT = """
from phantom.launch import interpreter
interpreter.extension_is_current = lambda found: True
"""
PHANTOM = f"""
import sys
sys.path.insert(0, {str(ROOT)!r})
{PRETEND_BUILT}
from phantom.cli.main import main
main()
"""


@dataclass
class Phantom:
    """Runs `phantom` in a folder, against the fake simulator if `simulator` is one."""

    folder: Path
    simulator: FakeSimulator | None
    faked: bool = True
    started: list[subprocess.Popen[str]] = field(default_factory=list)

    def start(self, *args: str, **variables: str) -> subprocess.Popen[str]:
        given = list(args)
        if self.simulator is not None and given[0] == "run":
            given[1:1] = ["--server", self.simulator.address]
        env = {**os.environ, "PYTHONPATH": str(self.folder / "site"), VARIABLE: TOKEN, **variables}
        env["PATH"] = f"{Path(sys.executable).parent}:{env['PATH']}"
        code = PHANTOM if self.faked else PHANTOM.replace(PRETEND_BUILT, "")
        command = [sys.executable, "-c", code, *given]
        pipe = subprocess.PIPE
        process = subprocess.Popen(command, cwd=self.folder, env=env, text=True, stdout=pipe, stderr=pipe)
        self.started.append(process)
        return process

    def run(self, *args: str, **variables: str) -> subprocess.CompletedProcess[str]:
        process = self.start(*args, **variables)
        out, err = process.communicate(timeout=120)
        return subprocess.CompletedProcess(args, process.returncode, out, err)

    def script(self, name: str, text: str) -> str:
        (self.folder / name).write_text(text)
        return name

    def wait_for(self, path: str, timeout_s: float = 60) -> str:
        """The text of a file in the folder, once it is there and not empty."""
        deadline_s = time.monotonic() + timeout_s
        file = self.folder / path
        while time.monotonic() < deadline_s:
            if file.exists() and file.read_text():
                return file.read_text()
            time.sleep(0.05)
        raise AssertionError(f"{path} did not appear")


@pytest.fixture
def simulator() -> Iterator[FakeSimulator]:
    running = FakeSimulator()
    yield running
    running.stop()


@pytest.fixture
def phantom(tmp_path: Path, simulator: FakeSimulator) -> Iterator[Phantom]:
    """`phantom` against the fake simulator."""
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(SITECUSTOMIZE)
    runner = Phantom(tmp_path, simulator)
    yield runner
    for process in runner.started:
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
            process.communicate()


def alive(pid: int) -> bool:
    """Whether a process runs (a zombie does not)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def processes_named(*words: str) -> list[int]:
    """Pids of processes whose command line or environment holds all of these words."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            text = (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes()
        except OSError:
            continue
        if all(word.encode() in text for word in words) and alive(int(entry.name)):
            found.append(int(entry.name))
    return found


def wait_until_gone(*pids: int, timeout_s: float = 15) -> list[int]:
    """Waits for processes to end; returns those that did not."""
    deadline_s = time.monotonic() + timeout_s
    left: list[Any] = list(pids)
    while left and time.monotonic() < deadline_s:
        time.sleep(0.05)
        left = [pid for pid in left if alive(pid)]
    return left
