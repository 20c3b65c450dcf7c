"""Results never overwrite each other."""

from __future__ import annotations

from pathlib import Path

import pytest

from phantom.launch.errors import UsageError
from phantom.launch.outdir import create


def test_default_is_the_first_free_number(tmp_path: Path) -> None:
    (tmp_path / "phantom-run-1").mkdir()
    assert create(None, cwd=tmp_path).name == "phantom-run-2"
    assert (tmp_path / "phantom-run-2" / "ranks").is_dir()


def test_an_empty_folder_may_be_used(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    assert create(tmp_path / "out") == (tmp_path / "out").resolve()


def test_a_finished_run_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "summary.json").write_text("{}")
    with pytest.raises(UsageError, match="a finished run"):
        create(tmp_path)


def test_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="is a file"):
        create(tmp_path / "file")
