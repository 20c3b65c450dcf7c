"""What `phantom doctor` looks at: one function per question, each with its remedy."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import resource
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from interpose import build
from interpose.startup import pth
from phantom.launch import interpreter as interpreters
from phantom.launch.errors import PhantomError
from phantom.launch.ports import free_ports

GOOD, WARNING, BAD = "good", "warning", "bad"
MIN_OPEN_FILES = 1024


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One answer: what was looked at, how it is, and what to do about it where it is not good."""

    name: str
    state: str
    text: str
    remedy: str = ""


def check_all(python: str) -> Iterator[Finding]:
    """Answers all questions; `python` is the job's interpreter ("": phantom's own)."""
    yield _system()
    yield from _interpreter(python)
    for question in (_packages, _compiler, _loopback, _memory, _open_files, _device, _store):
        yield question()


def _system() -> Finding:
    text = f"{platform.system()} {platform.release()}, {os.cpu_count()} cores"
    if sys.platform != "linux":
        return Finding(
            name="system", state=BAD, text=text, remedy="phantom runs on Linux; use the container image"
        )
    return Finding(name="system", state=GOOD, text=text)


def _interpreter(python: str) -> Iterator[Finding]:
    try:
        found = interpreters.own() if python == "" else interpreters.probe(python)
    except PhantomError as error:
        yield Finding(
            name="job's python", state=BAD, text=str(error), remedy="give a working one with --python PATH"
        )
        return
    where = (
        "phantom's own, ranks are forks"
        if found.is_own
        else "another environment, ranks are ordinary processes"
    )
    yield Finding(name="job's python", state=GOOD, text=f"{found.executable} ({where})")
    wrong = interpreters.problems(found)
    for problem in wrong:
        text, _, remedy = problem.partition("; remedy: ")
        yield Finding(name="job's packages", state=BAD, text=text, remedy=remedy)
    if wrong:
        return
    versions = ", ".join(f"{name} {version}" for name, version in found.packages.items())
    yield Finding(name="job's packages", state=GOOD, text=versions)
    if interpreters.extension_is_current(found):
        yield Finding(name="extension", state=GOOD, text=f"built for torch {found.packages['torch']}")
    else:
        yield Finding(name="extension", state=WARNING, text=f"not built for torch {found.packages['torch']}",
                      remedy=f"{found.executable} {build.__file__}  (or: phantom doctor --fix)")  # fmt: skip
    if pth.is_installed(found.site_packages):
        yield Finding(name="hook", state=GOOD, text=f"in {found.site_packages}")
    elif os.access(found.site_packages, os.W_OK):
        yield Finding(name="hook", state=WARNING, text=f"not in {found.site_packages}",
                      remedy="phantom doctor --fix  (phantom run does it by itself)")  # fmt: skip
    else:
        yield Finding(name="hook", state=BAD, text=f"{found.site_packages} is not writable",
                      remedy=f"as its owner: python {pth.__file__} {found.site_packages}")  # fmt: skip


def _packages() -> Finding:
    missing = []
    for name in ("torch", "numpy", "grpcio", "protobuf", "msgpack", "click", "rich"):
        try:
            importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            missing.append(name)
    if missing:
        return Finding(name="phantom's packages", state=BAD, text=f"missing: {', '.join(missing)}",
                       remedy=f"{sys.executable} -m pip install {' '.join(missing)}")  # fmt: skip
    return Finding(name="phantom's packages", state=GOOD, text="complete")


def _compiler() -> Finding:
    compiler = os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++")
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", "")))
    ninja = shutil.which("ninja", path=path)
    if compiler and ninja:
        return Finding(name="compiler", state=GOOD, text=f"{compiler}, {ninja}")
    state = WARNING if build.is_current() else BAD
    if not compiler:
        return Finding(name="compiler", state=state, text="no C++ compiler; needed once per torch version",
                       remedy="install g++ (Debian, Ubuntu: apt-get install g++) or set CXX")  # fmt: skip
    return Finding(
        name="compiler", state=state, text="no ninja", remedy=f"{sys.executable} -m pip install ninja"
    )


def _loopback() -> Finding:
    try:
        free_ports(4)
    except OSError as error:
        return Finding(name="loopback", state=BAD, text=f"no free port on 127.0.0.1: {error}",
                       remedy="allow listening on the loopback interface")  # fmt: skip
    return Finding(name="loopback", state=GOOD, text="ports on 127.0.0.1 are free")


def _memory() -> Finding:
    available = 0
    with open("/proc/meminfo") as file:
        for line in file:
            if line.startswith("MemAvailable:"):
                available = int(line.split()[1]) * 1024
    overcommit = Path("/proc/sys/vm/overcommit_memory").read_text().strip()
    text = f"{available / 2**30:.1f} GiB available; a rank of a fork takes 50-150 MiB"
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit != resource.RLIM_INFINITY:
        return Finding(name="memory", state=BAD, text=f"address space is limited to {limit / 2**30:.0f} GiB",
                       remedy="ulimit -v unlimited: device memory is reserved address space")  # fmt: skip
    if overcommit == "2":
        return Finding(name="memory", state=WARNING, text=text + "; vm.overcommit_memory is 2",
                       remedy="sysctl vm.overcommit_memory=0, for large tensors without pages")  # fmt: skip
    if available < 2**30:
        return Finding(name="memory", state=WARNING, text=text, remedy="free memory or simulate fewer ranks")
    return Finding(name="memory", state=GOOD, text=text)


def _open_files() -> Finding:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < MIN_OPEN_FILES:
        return Finding(name="open files", state=WARNING, text=f"limit {soft}",
                       remedy=f"ulimit -n {min(hard, 65536)}: every rank holds about ten")  # fmt: skip
    return Finding(name="open files", state=GOOD, text=f"limit {soft}")


def _device() -> Finding:
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return Finding(name="real GPU", state=GOOD, text="none; kernels are predicted or come from a store")
    try:
        done = subprocess.run([tool, "-L"], capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired) as error:
        return Finding(name="real GPU", state=WARNING, text=f"nvidia-smi does not answer: {error}")
    names = "; ".join(line.split(" (UUID")[0] for line in done.stdout.splitlines())
    return Finding(
        name="real GPU", state=GOOD, text=names or "none; kernels are predicted or come from a store"
    )


def _store() -> Finding:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "phantom"
    folder = cache
    while not folder.exists():
        folder = folder.parent
    if not os.access(folder, os.W_OK):
        return Finding(name="kernel store", state=WARNING, text=f"{cache} cannot be written",
                       remedy="set XDG_CACHE_HOME to a writable folder, or give --store")  # fmt: skip
    return Finding(name="kernel store", state=GOOD, text=str(cache / "kernels.sqlite"))
