"""The `phantom` command itself: mistyped names, working folders that are gone or not UTF-8."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from report.synthetic import write_run

MAIN = "from phantom.cli.main import main; main()"


def phantom(*arguments: str, folder: str, before: str = "pass") -> subprocess.CompletedProcess[str]:
    root = str(Path(__file__).parents[2])
    return subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {root!r}); {before}; {MAIN}", *arguments],
        cwd=folder, capture_output=True, text=True, errors="surrogateescape", timeout=60, check=False,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("word", "hint"), [("reprot", "did you mean report?"), ("zzz", "the commands are run,")]
)
def test_a_mistyped_command_gets_a_suggestion(tmp_path: Path, word: str, hint: str) -> None:
    done = phantom(word, folder=str(tmp_path))
    assert done.returncode == 2
    assert hint in done.stderr
    assert "Traceback" not in done.stderr


def test_a_deleted_working_folder_is_one_sentence(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    done = phantom("cluster", "list", folder=str(gone), before=f"import os; os.rmdir({str(gone)!r})")
    assert done.returncode == 2
    assert (
        done.stderr
        == "phantom: the working folder cannot be used: No such file or directory; change to another\n"
    )


def test_a_run_in_a_folder_that_is_not_utf8_is_shown(tmp_path: Path) -> None:
    folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff\xfe"))
    folder.mkdir()
    write_run(folder)
    for options in ((), ("--json",), ("--html",), ("--memory",)):
        done = phantom("report", str(folder), *options, folder=str(folder))
        assert (done.returncode, "Traceback" in done.stderr) == (0, False), done.stderr
    page = phantom("report", str(folder), "--html", folder=str(folder)).stdout.strip()
    assert Path(page) == folder / "report.html"
    done = phantom("report", str(folder / "none"), folder=str(folder))
    assert done.returncode == 2
    assert "\\xff\\xfe/none is not a finished run" in done.stderr
