"""Runs jobs with docker compose, and the same ones without, for the tests that need an engine."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
GIVEN_IMAGE = os.environ.get("IMAGE", "")
"""An image that is there already (make docker-test IMAGE=name) is tested instead of built."""

IMAGE = GIVEN_IMAGE or "phantom-sim-test"
USER = os.getuid() or 4321
"""Who runs the containers: the caller, or where that is root some other user."""

UP_TIMEOUT_S = 900.0
ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])),
    "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    "PHANTOM_UID": str(USER),
    "PHANTOM_GID": str(os.getgid() or USER),
    "COMPOSE_BAKE": "false",
}


def frameworks(*names: str) -> str:
    """Words for EXTRAS: these packages as the extra `frameworks` of pyproject.toml pins them."""
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    pinned = project["optional-dependencies"]["frameworks"]
    return " ".join(line for line in pinned if line.split("=")[0].split(">")[0] in names)


def phantom(folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """`phantom ARGUMENTS` on this machine."""
    done = subprocess.run(
        [sys.executable, "-m", "phantom.cli.main", *arguments],
        cwd=folder, env={**ENVIRONMENT, **environment}, text=True, capture_output=True, timeout=UP_TIMEOUT_S,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def read_summary(run: Path) -> dict[str, Any]:
    """A run's summary.json."""
    return dict(json.loads((run / "summary.json").read_text()))


@dataclass
class Composed:
    """A job in a folder of its own, with its compose file."""

    folder: Path
    project: str

    @property
    def results(self) -> Path:
        return self.folder / "phantom-results"

    @property
    def run(self) -> Path:
        """The first run's folder."""
        return self.results / "phantom-run-1"

    @property
    def summary(self) -> dict[str, Any]:
        return read_summary(self.run)

    def write(self, *arguments: str) -> None:
        """Writes the compose file."""
        phantom(self.folder, "compose", "--image", IMAGE, *arguments)
        if os.getuid() == 0:
            os.chown(self.results, USER, USER)
            os.chown(self.folder, USER, USER)

    def compose(self, *arguments: str, timeout_s: float = UP_TIMEOUT_S) -> subprocess.CompletedProcess[str]:
        """`docker compose ARGUMENTS`."""
        return subprocess.run(
            ["docker", "compose", "-p", self.project, *arguments],
            cwd=self.folder, env=ENVIRONMENT, text=True, capture_output=True, timeout=timeout_s,
        )  # fmt: skip

    def start(self) -> subprocess.Popen[str]:
        """`docker compose up` as the documentation has it."""
        return subprocess.Popen(
            ["docker", "compose", "-p", self.project, "up", "--no-build", "--no-color",
             "--abort-on-container-exit", "--exit-code-from", "simulator"],
            cwd=self.folder, env=ENVIRONMENT, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            start_new_session=True,
        )  # fmt: skip

    def up(self) -> tuple[int, str]:
        """Runs the job; exit status and everything that was printed."""
        process = self.start()
        try:
            output, _ = process.communicate(timeout=UP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            raise
        return process.returncode, output

    def wait_for(self, path: str, word: str, process: subprocess.Popen[str]) -> None:
        """Waits until a file of the run holds a word."""
        file = self.run / path
        deadline_s = time.monotonic() + UP_TIMEOUT_S
        while time.monotonic() < deadline_s and process.poll() is None:
            if file.exists() and word in file.read_text():
                return
            time.sleep(0.2)
        raise AssertionError(f"{file} never held {word!r}")


def same_figures(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether two runs agree to the last bit in all that depends on the job alone."""
    names = ("steps", "step_virtual_s", "ranks", "collectives", "coverage")
    return all(one[name] == other[name] for name in names)
