"""`phantom compare`: pairing of steps, tolerance, exit status, unusable files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from phantom.cli.main import cli
from phantom.launch.errors import UsageError


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """A run whose steps take 9 s (the first), 2, 2 and 3 s."""
    folder = tmp_path / "run"
    folder.mkdir()
    steps = [{"index": index, "virtual_s": time_s} for index, time_s in enumerate((9.0, 2.0, 2.0, 3.0))]
    (folder / "summary.json").write_text(json.dumps({"schema": 1, "steps": steps}))
    return folder


def compare(run_dir: Path, real: Any, *options: str) -> Result:
    path = run_dir / "real.json"
    path.write_text(real if isinstance(real, str) else json.dumps(real))
    return CliRunner().invoke(
        cli, ["compare", str(run_dir), "--real", str(path), *options], standalone_mode=False
    )


@pytest.mark.parametrize(
    "real",
    [
        [1.0, 2.5, 2.5, 2.5],
        {"steps": [1.0, 2.5, 2.5, 2.5]},
        [{"index": 3, "real_s": 2.5}, {"index": 1, "real_s": 2.5}, {"index": 2, "real_s": 2.5}],
    ],
)
def test_error_is_that_of_the_median_without_the_first_step(run_dir: Path, real: Any) -> None:
    done = compare(run_dir, real, "--json", "--tolerance", "0.2")
    found = json.loads(done.output)
    assert found["median"] == {"virtual_s": 2.0, "real_s": 2.5, "error": pytest.approx(-0.2)}
    assert found["within"] == (abs(found["median"]["error"]) <= 0.2)
    assert compare(run_dir, real, "--tolerance", "0.21").return_value == 0
    assert compare(run_dir, real, "--tolerance", "0.19").return_value == 1


def test_table_shows_every_step_with_its_error(run_dir: Path) -> None:
    done = compare(run_dir, [6.0, 2.0, 2.5, 2.0, 7.0])
    lines = [line.split() for line in done.output.splitlines()]
    assert lines[1] == ["0", "9", "s", "6", "s", "+50.0%", "(left", "out)"]
    assert lines[4] == ["3", "3", "s", "2", "s", "+50.0%"]
    assert lines[5] == ["median", "2", "s", "2", "s", "+0.0%"]
    assert "1 step was only measured" in done.output
    assert "within the tolerance of 10.0%" in done.output
    assert done.return_value == 0


def test_skip_says_how_many_leading_steps_do_not_count(run_dir: Path) -> None:
    found = json.loads(compare(run_dir, [9.0, 1.0, 1.0, 3.0], "--skip", "3", "--json").output)
    assert found["median"]["error"] == 0
    assert json.loads(compare(run_dir, [9.0], "--json").output)["skipped"] == 0


@pytest.mark.parametrize(
    ("real", "words"),
    [
        ("{", "is not JSON"),
        ({"times": [1]}, "expected a list of step times"),
        ([1.0, 0], "steps[1] is 0"),
        ([1.0, "2"], "steps[1] is '2'"),
        ([float("nan")], "steps[0] is nan"),
        ([{"index": 1, "real_s": 1.0}, {"index": 1, "real_s": 2.0}], "step 1 is there twice"),
        ([{"real_s": 1.0}], "index None"),
        ([], "no step to compare"),
        ([{"index": 9, "real_s": 1.0}], "the measurement has 1 step from 9 to 9"),
    ],
)
def test_unusable_measurements_are_bad_usage(run_dir: Path, real: Any, words: str) -> None:
    error = compare(run_dir, real).exception
    assert isinstance(error, UsageError)
    assert error.status == 2
    assert words in str(error)


def test_a_folder_without_a_run_is_bad_usage(tmp_path: Path) -> None:
    error = compare(tmp_path, [1.0]).exception
    assert isinstance(error, UsageError)
    assert "is not a finished run: no summary.json in it" in str(error)
