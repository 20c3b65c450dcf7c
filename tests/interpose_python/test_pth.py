"""The hook in site-packages: free without PHANTOM, under -I and -E too, and from another place than it was
installed."""

from __future__ import annotations

import socket
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from interpose.startup import pth


@pytest.fixture(scope="module")
def other_python(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A bare virtual environment with the hook: its python and its site-packages."""
    folder = tmp_path_factory.mktemp("venv")
    venv.create(folder, symlinks=True)
    site = next(folder.glob("lib/python*/site-packages"))
    assert pth.install(site)
    return folder / "bin" / "python", site


def run(python: Path, *args: str, **variables: str) -> str:
    env = {"PATH": "/usr/bin:/bin", **variables}
    done = subprocess.run([python, *args], capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip() + done.stderr.strip()


SHOW = """
import sys
print(sorted(n for n in sys.modules if n.split('.')[0] in ('_phantom_hook', 'interpose', 'phantom')))
"""


def test_without_the_variable_nothing_is_imported(other_python: tuple[Path, Path]) -> None:
    assert run(other_python[0], "-c", SHOW) == "[]"


@pytest.mark.parametrize("options", [[], ["-I"], ["-E"], ["-s"]])
def test_with_it_the_hook_waits_for_torch(other_python: tuple[Path, Path], options: list[str]) -> None:
    shown = run(other_python[0], *options, "-c", SHOW, PHANTOM="1")
    assert shown == (
        "['_phantom_hook', 'interpose', 'interpose.environment', 'interpose.standins', "
        "'interpose.standins.finder', 'interpose.standins.registry', 'interpose.standins.surface', "
        "'interpose.standins.surfaces', 'interpose.standins.surfaces.model', "
        "'interpose.standins.surfaces.objects', 'interpose.startup', 'interpose.startup.import_hook', "
        "'phantom', 'phantom.wire', 'phantom.wire.token']"
    )


def test_only_phantoms_packages_become_importable(other_python: tuple[Path, Path]) -> None:
    code = "import importlib.util as u, interpose, phantom.wire, sys; print(u.find_spec('netsim'), sys.path)"
    shown = run(other_python[0], "-I", "-c", code, PHANTOM="1")
    assert shown.startswith("None")
    assert pth.root() not in shown


def test_a_folder_that_is_gone_is_said_and_python_goes_on(other_python: tuple[Path, Path]) -> None:
    shown = run(other_python[0], "-c", "print('works')", PHANTOM="1", PHANTOM_ROOT="/no/such")
    assert "works" in shown
    assert "/no/such is gone" in shown


@pytest.mark.parametrize("options", [[], ["-I"], ["-u"]])
def test_output_comes_at_once_and_a_line_at_a_time(
    other_python: tuple[Path, Path], options: list[str]
) -> None:
    # Each write is a message here; what stays in a buffer is lost by _exit.
    code = "import os; print('rank', 1); print('local', 0); os._exit(0)"
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    command = [other_python[0], *options, "-c", code]
    subprocess.run(command, stdout=theirs, env={"PATH": "/usr/bin:/bin", "PHANTOM": "1"}, check=True)
    theirs.close()
    got = []
    while message := ours.recv(1000):
        got.append(message)
    ours.close()
    if options == ["-u"]:  # as asked for
        assert got[0] == b"rank"
        assert b"".join(got) == b"rank 1\nlocal 0\n"
    else:
        assert got == [b"rank 1\n", b"local 0\n"]


def test_installing_twice_writes_once_and_removing_leaves_nothing(tmp_path: Path) -> None:
    assert pth.install(tmp_path)
    assert not pth.install(tmp_path)
    assert pth.is_installed(tmp_path)
    (tmp_path / pth.HOOK_NAME).write_text(pth.hook_text().replace(pth.root(), "/no/such"))
    assert not pth.is_installed(tmp_path)
    assert pth.remove(tmp_path)
    assert list(tmp_path.iterdir()) == []
    assert not pth.remove(tmp_path)


def test_a_read_only_folder_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="missing"):
        pth.install(tmp_path / "missing")


def test_the_line_costs_one_look_up() -> None:
    assert pth.PTH_LINE.count("\n") == 1
    assert "environ" in pth.PTH_LINE
    assert sys.modules.get("_phantom_hook") is None
