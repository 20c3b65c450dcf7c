"""Checks the interpreter that will run the job, and prepares it: the hook, and an extension built for its
torch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from interpose import build
from interpose.startup import pth
from phantom.launch.errors import UsageError

PROBE_TIMEOUT_S = 60.0
BUILD_TIMEOUT_S = 1800.0
TORCH_VERSIONS = ((2, 13), (2, 15))
"""Torch versions that the extension is written for: from the first, below the second (pyproject.toml)."""

_REQUIRED = ("grpcio", "protobuf", "msgpack")

# Imports nothing of the job: torch takes seconds.
_PROBE = """
import importlib.metadata as metadata, json, site, sys, sysconfig
def version(name):
    try: return metadata.version(name)
    except metadata.PackageNotFoundError: return None
print(json.dumps({"executable": sys.executable, "prefix": sys.prefix, "base": sys.base_prefix, "python":
sys.version_info[:3],
    "site_packages": sysconfig.get_paths()["purelib"], "no_site": sys.flags.no_site,
    "packages": {n: version(n) for n in ("torch", "grpcio", "protobuf", "msgpack")}}))
"""


@dataclass(frozen=True, kw_only=True)
class Interpreter:
    """A Python interpreter, as it describes itself."""

    executable: str
    prefix: str
    python: tuple[int, ...]
    site_packages: str
    packages: dict[str, str | None]

    @property
    def is_own(self) -> bool:
        """Whether this is the interpreter that runs phantom, virtual environment included."""
        return os.path.realpath(self.prefix) == os.path.realpath(sys.prefix)


def probe(executable: str) -> Interpreter:
    """Asks an interpreter about itself.

    Raises UsageError where it cannot be run or does not answer.
    """
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PHANTOM")}
    try:
        done = subprocess.run([executable, "-c", _PROBE], capture_output=True, text=True,
                              timeout=PROBE_TIMEOUT_S, env=environment, stdin=subprocess.DEVNULL)  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UsageError(f"cannot run the job's interpreter {executable}: {error}") from None
    try:
        answer: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    except (ValueError, IndexError):
        raise UsageError(
            f"the job's interpreter {executable} does not work: {done.stderr.strip()[-500:]}"
        ) from None
    return Interpreter(
        executable=answer["executable"],
        prefix=answer["prefix"],
        python=tuple(answer["python"]),
        site_packages=answer["site_packages"],
        packages=answer["packages"],
    )


def own() -> Interpreter:
    """The interpreter that runs phantom."""
    return probe(sys.executable)


def problems(interpreter: Interpreter) -> list[str]:
    """What keeps this interpreter from running a simulated job, each with its remedy; empty if nothing
    does."""
    found: list[str] = []
    python = interpreter.executable
    torch = interpreter.packages.get("torch")
    if torch is None:
        found.append(f"{python} has no torch; remedy: {python} -m pip install 'torch>=2.13,<2.15'")
    else:
        numbers = tuple(int(part) for part in torch.split("+")[0].split(".")[:2] if part.isdigit())
        if not TORCH_VERSIONS[0] <= numbers < TORCH_VERSIONS[1]:
            found.append(f"{python} has torch {torch}, phantom works with 2.13 and 2.14; "
                         f"remedy: {python} -m pip install 'torch>=2.13,<2.15'")  # fmt: skip
    missing = [name for name in _REQUIRED if interpreter.packages.get(name) is None]
    if missing:
        found.append(
            f"{python} lacks {', '.join(missing)}; remedy: {python} -m pip install {' '.join(missing)}"
        )
    return found


def extension_is_current(interpreter: Interpreter) -> bool:
    """Whether the C++ extension is built for this interpreter's torch."""
    if interpreter.is_own:
        return build.is_current()
    code = "import runpy, sys; sys.exit(0 if runpy.run_path(sys.argv[1])['is_current']() else 1)"
    done = subprocess.run([interpreter.executable, "-c", code, build.__file__], capture_output=True,
                          timeout=PROBE_TIMEOUT_S, env=_build_environment())  # fmt: skip
    return done.returncode == 0


def build_extension(interpreter: Interpreter) -> None:
    """Builds the extension for this interpreter's torch. Raises UsageError with the compiler's words."""
    done = subprocess.run([interpreter.executable, build.__file__, "-q"], capture_output=True, text=True,
                          timeout=BUILD_TIMEOUT_S, env=_build_environment(),
                          stdin=subprocess.DEVNULL)  # fmt: skip
    if done.returncode != 0:
        raise UsageError(
            f"building phantom's extension for torch {interpreter.packages['torch']} failed; remedy: fix "
            f"what the compiler says, then: {interpreter.executable} {build.__file__}\n"
            f"{(done.stdout + done.stderr)[-3000:]}"
        )


def _build_environment() -> dict[str, str]:
    environment = {name: value for name, value in os.environ.items() if name != "PHANTOM"}
    # ninja comes with phantom's environment; the job's may lack it.
    environment["PATH"] = f"{environment.get('PATH', os.defpath)}{os.pathsep}{Path(sys.executable).parent}"
    return environment


def install_hook(interpreter: Interpreter) -> bool:
    """Installs the .pth hook; returns whether it had to be written. Raises UsageError where it cannot be."""
    try:
        return pth.install(interpreter.site_packages)
    except OSError as error:
        raise UsageError(
            f"cannot install phantom's hook into {interpreter.site_packages} ({error.strerror}); remedy: "
            f"make that folder writable once and run: {interpreter.executable} {pth.__file__} "
            f"{interpreter.site_packages}, "
            f"or run the job in a virtual environment of your own"
        ) from None


def prepare(executable: str, *, say: Any) -> Interpreter:
    """Checks the interpreter and puts in place what is missing; `say(text)` is told of slow work.

    Raises UsageError that names the remedy.
    """
    interpreter = own() if executable == "" else probe(executable)
    wrong = problems(interpreter)
    if wrong:
        raise UsageError("the job's interpreter cannot be simulated:\n  " + "\n  ".join(wrong))
    if not extension_is_current(interpreter):
        say(f"building the extension for torch {interpreter.packages['torch']} (once, a few minutes)")
        build_extension(interpreter)
    install_hook(interpreter)
    return interpreter
