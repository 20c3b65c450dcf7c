"""How often a command is started, and by which interpreter."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from phantom.launch.command import parse
from phantom.launch.errors import UsageError


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "train.py").write_text("")
    (tmp_path / "go.sh").write_text("#!/bin/bash\npython train.py\n")
    (tmp_path / "go.sh").chmod(0o755)
    programs = tmp_path / "bin"
    programs.mkdir()
    shebangs = {
        "torchrun": "/opt/other/bin/python3.11",
        "accelerate": "/usr/bin/env python3",
        "mpirun": "/bin/sh",
        "deepspeed": "/opt/other/bin/python",
    }
    for name, interpreter in shebangs.items():
        (programs / name).write_text(f"#!{interpreter}\n")
        (programs / name).chmod(0o755)
    (programs / "python").symlink_to(sys.executable)
    (programs / "python3").symlink_to(sys.executable)
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("command", [["train.py", "--x", "1"], ["python", "train.py", "--x", "1"],
                                     ["python", "-u", "train.py", "--x", "1"]])  # fmt: skip
def test_scripts_run_once_per_rank_and_can_be_forked(folder: Path, command: list[str]) -> None:
    found = parse(command)
    assert (found.launch, found.script, found.args) == ("rank", "train.py", ("--x", "1"))


def test_own_interpreter_runs_a_bare_script_or_module(folder: Path) -> None:
    assert parse(["train.py"]).python == ""
    module = parse(["-m", "package.train", "a"])
    assert (module.python, module.module, module.args) == ("", "package.train", ("a",))


def test_a_named_python_is_the_one_to_check(folder: Path) -> None:
    assert parse(["python", "train.py"]).python == str(folder / "bin" / "python")


@pytest.mark.parametrize("options", [["-O"], ["-X", "faulthandler"], ["-W", "ignore", "-B"]])
def test_interpreter_options_rule_out_forks(folder: Path, options: list[str]) -> None:
    found = parse(["python", *options, "train.py", "a"])
    assert (found.launch, found.script, found.module) == ("rank", None, None)
    assert found.argv == ("python", *options, "train.py", "a")


def test_code_on_the_command_line_runs_per_rank(folder: Path) -> None:
    assert parse(["python", "-c", "import torch"]).launch == "rank"


@pytest.mark.parametrize(
    ("command", "launcher", "at"),
    [
        (["torchrun", "train.py"], "torchrun", 1),
        (["python", "-m", "torch.distributed.run", "train.py"], "torchrun", 3),
        (["-m", "torch.distributed.run", "train.py"], "torchrun", 3),
        (["accelerate", "launch", "train.py"], "accelerate", 2),
        (["python", "-m", "accelerate.commands.launch", "train.py"], "accelerate", 3),
        (["deepspeed", "train.py"], "deepspeed", 1),
    ],
)  # fmt: skip
def test_launchers_run_once_per_node(folder: Path, command: list[str], launcher: str, at: int) -> None:
    found = parse(command)
    assert (found.launch, found.launcher, found.arguments_at) == ("node", launcher, at)


def test_console_scripts_name_their_interpreter(folder: Path) -> None:
    assert parse(["torchrun", "train.py"]).python == "/opt/other/bin/python3.11"
    assert parse(["accelerate", "launch", "train.py"]).python == str(folder / "bin" / "python3")


@pytest.mark.parametrize("command", [["./go.sh"], ["bash", "go.sh"], ["bash", "-c", "python train.py"]])
def test_shell_scripts_run_once_per_node(folder: Path, command: list[str]) -> None:
    found = parse(command)
    assert (found.launch, found.launcher, found.python) == ("node", None, None)


def test_mpirun_and_deepspeed_with_hosts_run_once(folder: Path) -> None:
    assert parse(["mpirun", "-np", "4", "python", "train.py"]).launch == "once"
    assert parse(["deepspeed", "--hostfile", "hosts", "train.py"]).launch == "once"


def test_launch_option_overrides_the_form(folder: Path) -> None:
    assert parse(["train.py"], launch="node").launch == "node"


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ([], "no command"),
        (["missing.py"], "script not found: missing.py"),
        (["python", "missing.py"], "script not found: missing.py"),
        (["bash", "missing.sh"], "script not found: missing.sh"),
        (["no-such-program"], "no such program"),
        (["python"], "no script"),
        (["-m"], "-m needs"),
        (["--bogus", "train.py"], "unknown option --bogus"),
    ],
)
def test_what_cannot_run_is_refused_with_its_name(folder: Path, command: list[str], words: str) -> None:
    with pytest.raises(UsageError, match=words) as error:
        parse(command)
    assert error.value.status == 2
