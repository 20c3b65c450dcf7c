"""What kind of command the user gave: how often it is started and by which interpreter it runs."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from phantom.launch.errors import UsageError

RANK, NODE, ONCE = "rank", "node", "once"
_PYTHON = re.compile(r"python(\d+(\.\d+)*)?t?$")
_SHELLS = frozenset({"sh", "bash", "dash", "zsh", "ksh", "fish"})
MPIRUN = frozenset({"mpirun", "mpiexec", "orterun"})
_TORCHRUN_MODULES = frozenset({"torch.distributed.run", "torch.distributed.launch"})
_ACCELERATE_MODULES = frozenset({"accelerate.commands.launch", "accelerate.commands.accelerate_cli"})
_PYTHON_OPTIONS_WITH_VALUE = frozenset({"-X", "-W", "--check-hash-based-pycs"})


@dataclass(frozen=True, kw_only=True)
class Command:
    """A command, taken apart.

    `launch`: started once per "rank", per "node" or "once". `launcher`: "torchrun", "accelerate",
    "deepspeed", "mpirun" or None. `arguments_at`: index in `argv` where options of the launcher may be put
    in. `python`: the interpreter, None where it is not known from the command (a shell script), "" for
    phantom's own. `script`/`module`: what a fork could run itself, with `args`; both None where the
    interpreter must be started (options, -c) or the command is no Python.
    """

    argv: tuple[str, ...]
    launch: str
    launcher: str | None = None
    arguments_at: int = 0
    python: str | None = None
    script: str | None = None
    module: str | None = None
    args: tuple[str, ...] = ()


def parse(
    command: Sequence[str], *, launch: str | None = None, cwd: Path | None = None, elsewhere: bool = False
) -> Command:
    """Takes a command apart; `launch` overrides how often it is started.

    `elsewhere`: the command will run in another environment, which has programs of its own.

    Raises UsageError for an empty command, a script or program that is not there.
    """
    if not command:
        raise UsageError("no command given; usage: phantom run [options] -- script.py [args]")
    argv = tuple(command)
    found = _parse(argv, cwd or Path.cwd(), elsewhere=elsewhere)
    if launch is not None and launch != found.launch:
        found = Command(**{**found.__dict__, "launch": launch})
    return found


def _parse(argv: tuple[str, ...], cwd: Path, *, elsewhere: bool) -> Command:
    first = argv[0]
    name = os.path.basename(first)
    if first == "-m":
        if len(argv) < 2:
            raise UsageError("-m needs the name of a module")
        return _module(("python", *argv), 2, python="")
    if first.startswith("-"):
        raise UsageError(f"unknown option {first}; see phantom run --help")
    if first.endswith(".py"):
        _require_script(first, cwd)
        return Command(argv=("python", *argv), launch=RANK, python="", script=first, args=argv[1:])
    program = shutil.which(first) or (str(cwd / first) if os.access(cwd / first, os.X_OK) else None)
    if program is None:
        # `.venv/bin/phantom run -- torchrun ...` without activating the environment.
        program = shutil.which(first, path=str(Path(sys.executable).parent))
        argv = (program, *argv[1:]) if program is not None else argv
    if program is None and elsewhere:
        program = first
    if program is None or Path(program).is_dir():
        raise UsageError(
            f"cannot run {first!r}: no such program"
            + (" (is it executable?)" if Path(cwd, first).exists() else "")
        )
    if _PYTHON.fullmatch(name):
        return _python(argv, program, cwd)
    if name == "torchrun":
        return Command(argv=argv, launch=NODE, launcher="torchrun", arguments_at=1, python=_shebang(program))
    if name == "accelerate":
        at = 2 if len(argv) > 1 and argv[1] == "launch" else 0
        return Command(argv=argv, launch=NODE, launcher="accelerate" if at else None, arguments_at=at,
                       python=_shebang(program))  # fmt: skip
    if name == "deepspeed":
        once = any(text.split("=")[0] in ("--hostfile", "-H") for text in argv)
        return Command(argv=argv, launch=ONCE if once else NODE, launcher="deepspeed", arguments_at=1,
                       python=_shebang(program))  # fmt: skip
    if name in MPIRUN:
        return Command(argv=argv, launch=ONCE, launcher="mpirun", arguments_at=1)
    if name == "srun":
        return Command(argv=argv, launch=ONCE)
    if name in _SHELLS:
        script = next((text for text in argv[1:] if not text.startswith("-")), None)
        if script is not None and "-c" not in argv[1:]:
            _require_script(script, cwd)
        return Command(argv=argv, launch=NODE)
    interpreter = _shebang(program)
    return Command(argv=argv, launch=NODE, python=interpreter)


def _require_script(script: str, cwd: Path) -> None:
    path = cwd / script
    if not path.exists():
        raise UsageError(f"script not found: {script} (looked in {path.resolve().parent})")
    if path.is_dir() and not (path / "__main__.py").exists():
        raise UsageError(f"{script} is a folder, not a script")
    if not os.access(path, os.R_OK):
        raise UsageError(f"cannot read {script}")


def _python(argv: tuple[str, ...], program: str, cwd: Path) -> Command:
    at = 1
    while at < len(argv) and argv[at].startswith("-") and argv[at] not in ("-", "-m", "-c"):
        at += 2 if argv[at] in _PYTHON_OPTIONS_WITH_VALUE else 1
    if at >= len(argv):
        raise UsageError(f"{' '.join(argv)}: no script given")
    plain = at == 1 or all(text == "-u" for text in argv[1:at])
    if argv[at] == "-m":
        if at + 1 >= len(argv):
            raise UsageError("-m needs the name of a module")
        return _module(argv, at + 1, python=program, plain=plain)
    if argv[at] in ("-c", "-"):
        return Command(argv=argv, launch=RANK, python=program)
    if os.path.basename(argv[at]) == "torchrun":
        return Command(argv=argv, launch=NODE, launcher="torchrun", arguments_at=at + 1, python=program)
    _require_script(argv[at], cwd)
    return Command(
        argv=argv, launch=RANK, python=program, script=argv[at] if plain else None, args=argv[at + 1 :]
    )


def _module(argv: tuple[str, ...], at: int, *, python: str, plain: bool = True) -> Command:
    module = argv[at]
    if module in _TORCHRUN_MODULES:
        return Command(argv=argv, launch=NODE, launcher="torchrun", arguments_at=at + 1, python=python)
    if module in _ACCELERATE_MODULES:
        at = at + 2 if argv[at + 1 : at + 2] == ("launch",) else at + 1
        return Command(argv=argv, launch=NODE, launcher="accelerate", arguments_at=at, python=python)
    if module.startswith("deepspeed.launcher"):
        return Command(argv=argv, launch=NODE, launcher="deepspeed", arguments_at=at + 1, python=python)
    return Command(
        argv=argv, launch=RANK, python=python, module=module if plain else None, args=argv[at + 1 :]
    )


def _shebang(program: str) -> str | None:
    """The Python that a console script names in its first line; None where it is no such script."""
    try:
        with open(program, "rb") as file:
            line = file.readline(1000)
            second = file.readline(1000)
    except OSError:
        return None
    if not line.startswith(b"#!"):
        return None
    words = line[2:].decode(errors="replace").split()
    if words and os.path.basename(words[0]) == "env":
        words = [word for word in words[1:] if not word.startswith("-")]
        found = shutil.which(words[0]) if words else None
        words = [found] if found else []
    if words and _PYTHON.fullmatch(os.path.basename(words[0])):
        return words[0]
    # Console scripts with a long interpreter path: `#!/bin/sh` and then `'''exec' "/path/to/python" ...`.
    match = re.search(r"'''exec' \"?([^\" ]+)\"?", second.decode(errors="replace"))
    return match.group(1) if match else None
