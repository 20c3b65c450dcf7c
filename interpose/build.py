"""Builds the C++ extension against the torch of the running interpreter: `python -m interpose.build`.

One build per torch version, kept beside the package if that folder is writable, else in the user's cache. A
stamp of the sources and of the torch version is stored with it, so that `interpose.extension` can tell a
stale build from a good one.

Most of a source's compile time goes to templates of torch's and pybind11's headers that it shares with its
neighbours, so the compiler gets them in bundles: files of `#include` lines. Names in anonymous namespaces are
therefore unique across files.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
from itertools import pairwise
from pathlib import Path

SOURCES = Path(__file__).parent / "csrc"
# More of them cost more CPU time in all, fewer keep fewer cores busy.
BUNDLES = 8
REBUILD = f"{sys.executable} -m interpose.build"


def torch_version() -> str:
    """Version of the installed torch without importing it (the import takes seconds)."""
    from importlib.metadata import version

    return version("torch")


def torch_root() -> Path:
    """Folder of the installed torch package, without importing it."""
    from importlib.util import find_spec

    spec = find_spec("torch")
    if spec is None or spec.origin is None:
        raise RuntimeError(f"torch is not installed for {sys.executable}: pip install torch")
    return Path(spec.origin).parent


def build_dir() -> Path:
    """Where the extension for this torch and this Python lies or will lie."""
    name = f"torch{torch_version()}-cp{sys.version_info.major}{sys.version_info.minor}"
    chosen = os.environ.get("PHANTOM_BUILD_DIR")
    if chosen:
        return Path(chosen) / name
    beside = Path(__file__).parent / "_build"
    writable = os.access(beside if beside.exists() else beside.parent, os.W_OK)
    # An installation of somebody else's (an image, a system package) brings a build of its own.
    if writable or _fits(beside / name):
        return beside / name
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "phantom" / "extension" / name


def stamp() -> str:
    """Fingerprint of the sources, of torch and of Python."""
    digest = hashlib.sha256(f"{torch_version()} {sys.version_info[:2]}".encode())
    for path in sorted(path for path in SOURCES.rglob("*") if path.suffix in (".h", ".cpp")):
        digest.update(path.relative_to(SOURCES).as_posix().encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()


def library() -> Path:
    """Path of the built extension."""
    return build_dir() / "_C.so"


def is_current() -> bool:
    """Whether the built extension fits the sources and the installed torch."""
    return _fits(build_dir())


def _fits(folder: Path) -> bool:
    mark = folder / "stamp"
    return (folder / "_C.so").exists() and mark.exists() and mark.read_text() == stamp()


def _bundles() -> dict[str, str]:
    """Name and text of each bundle. Paths are relative to the sources, for ccache."""
    sources = sorted(path.relative_to(SOURCES).as_posix() for path in SOURCES.rglob("*.cpp"))
    bounds = [len(sources) * i // BUNDLES for i in range(BUNDLES + 1)]
    return {
        f"bundle{i}": "".join(f'#include "{source}"\n' for source in sources[start:end])
        for i, (start, end) in enumerate(pairwise(bounds))
    }


def _write_bundles(out: Path) -> list[str]:
    """Writes the bundles that changed and returns the names of all."""
    bundles = _bundles()
    for name, text in bundles.items():
        path = out / f"{name}.cpp"
        if not path.exists() or path.read_text() != text:
            path.write_text(text)
    return list(bundles)


def _write_ninja_file(out: Path) -> None:
    root = torch_root()
    includes = [
        root / "include",
        root / "include/torch/csrc/api/include",
        Path(sysconfig.get_paths()["include"]),
    ]
    flags = [
        "-O2",
        "-g1",
        "-std=c++20",
        "-fPIC",
        "-fvisibility=hidden",
        "-Wall",
        "-Wno-unused-function",
        "-Wno-sign-compare",
        "-DTORCH_EXTENSION_NAME=_C",
        "-D_GLIBCXX_USE_CXX11_ABI=1",
        f"-iquote {SOURCES}",
        *(f"-isystem {path}" for path in includes),
    ]
    libs = f"-L{root / 'lib'} -Wl,-rpath,{root / 'lib'} -lc10 -ltorch_cpu -ltorch -ltorch_python"
    compiler = os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++")
    if not compiler:
        raise RuntimeError("no C++ compiler found: install g++ (Debian: apt-get install g++) or set CXX")
    cached_compiler = f"{shutil.which('ccache') or ''} {compiler}".strip()
    lines = [
        f"cxx = {cached_compiler}",
        f"flags = {' '.join(flags)}",
        "rule cc",
        "  command = $cxx -MMD -MF $out.d $flags -c $in -o $out",
        "  depfile = $out.d",
        "  deps = gcc",
        "rule link",
        f"  command = {compiler} -shared $in -o $out {libs}",
    ]
    names = _write_bundles(out)
    objects = [f"{name}.o" for name in names]
    lines += [f"build {name}.o: cc {out / name}.cpp" for name in names]
    lines += [f"build _C.so: link {' '.join(objects)}", "default _C.so", ""]
    (out / "build.ninja").write_text("\n".join(lines))


def build(*, verbose: bool = False) -> Path:
    """Builds the extension if it is not current and returns its path.

    Raises RuntimeError with the compiler's output when it fails. Safe against parallel calls (file lock).
    """
    import fcntl

    out = build_dir()
    out.mkdir(parents=True, exist_ok=True)
    with open(out / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if is_current():
            return library()
        mark = stamp()
        _write_ninja_file(out)
        ninja = shutil.which(
            "ninja", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
        )
        if not ninja:
            raise RuntimeError(f"ninja not found: {sys.executable} -m pip install ninja")
        jobs = os.environ.get("MAX_JOBS", str(os.cpu_count() or 2))
        done = subprocess.run([ninja, "-C", str(out), "-j", jobs], capture_output=not verbose, text=True)
        if done.returncode != 0:
            raise RuntimeError(f"building the extension failed:\n{done.stdout or ''}{done.stderr or ''}")
        (out / "stamp").write_text(mark)
    return library()


if __name__ == "__main__":
    print(build(verbose="-q" not in sys.argv))
