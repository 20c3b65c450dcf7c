"""The matrix itself: what counts as a failure, and that none is dropped."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from . import __main__ as matrix
from .case import Case
from .outcome import Outcome, judged, run_case
from .page import page

SUMMARY = {
    "step_virtual_s": {"median": 0.0125},
    "steps": [{"index": 0}, {"index": 1}],
    "ranks": [{"peak_allocated_bytes": 1 << 30}, {"peak_allocated_bytes": 3 << 30}],
    "coverage": {"unpriced": 0.0},
    "wall_s": 2.0,
}


def a_case(**given: object) -> Case:
    return Case(name="a", framework="F", version="pytest", feature="x", command=["python", "t.py"], **given)  # type: ignore[arg-type]


def a_run(folder: Path, **changes: object) -> Path:
    (folder / "summary.json").write_text(json.dumps(SUMMARY | changes))
    return folder


def test_a_good_run_is_ok_with_its_figures(tmp_path: Path) -> None:
    outcome = judged(a_case(), a_run(tmp_path), 0, "")
    assert (outcome.status, outcome.step_virtual_s, outcome.peak_memory_bytes) == ("ok", 0.0125, 3 << 30)
    assert outcome.version == pytest.__version__


@pytest.mark.parametrize(
    ("exit_status", "changes", "case", "status"),
    [
        (1, {}, a_case(), "failed: exit status 1"),
        (0, {"steps": []}, a_case(), "failed: no step was seen"),
        (0, {}, a_case(steps=3), "failed: 2 steps, not 3"),
        (0, {"coverage": {"unpriced": 0.01}}, a_case(), "failed: kernels without a cost"),
        (0, {}, a_case(refused="no such thing"), "failed: no error with “no such thing”, exit status 0"),
        (1, {}, a_case(refused="no such thing"), "failed: no error with “no such thing”, exit status 1"),
    ],
)
def test_what_counts_as_failed(
    tmp_path: Path, exit_status: int, changes: dict[str, object], case: Case, status: str
) -> None:
    outcome = judged(case, a_run(tmp_path, **changes), exit_status, "what it printed")
    assert outcome.status == status
    assert outcome.output == "what it printed"


def test_a_refusal_wants_its_words_and_a_bad_exit_status(tmp_path: Path) -> None:
    case = a_case(refused="wants NVSHMEM")
    assert judged(case, a_run(tmp_path), 1, "error: wants NVSHMEM 3").status == "refused"


def test_a_framework_that_fails_anyway_is_no_success_of_ours(tmp_path: Path) -> None:
    case = a_case(fails_anyway="no attribute")
    assert judged(case, a_run(tmp_path), 1, "no attribute x").status == "fails without phantom too"
    assert judged(case, a_run(tmp_path), 0, "").failed


def test_a_case_without_its_checkout_is_shown_as_not_run(tmp_path: Path) -> None:
    outcome = run_case(a_case(needs_path="megatron"), tmp_path / "a")
    assert outcome.status == "not run: wants MEGATRON=PATH"
    assert not outcome.failed


def test_failed_rows_are_in_the_page_and_set_the_exit_status(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    crash = Case(
        name="crash", framework="F", version="pytest", feature="x", command=[sys.executable, "-c", "1/0"]
    )
    monkeypatch.setattr(matrix, "collect_cases", lambda: [crash])
    monkeypatch.setattr(matrix, "PAGE", tmp_path / "frameworks.md")
    monkeypatch.setattr(matrix, "ROWS", tmp_path / "build" / "frameworks.json")
    (tmp_path / "runs" / "crash" / "run").mkdir(parents=True)
    a_run(tmp_path / "runs" / "crash" / "run")  # left by an earlier matrix
    assert matrix.main(["--keep", str(tmp_path / "runs")]) == 1
    text = (tmp_path / "frameworks.md").read_text()
    assert "| crash |" in text
    assert "failed: exit status 1" in text
    assert "1 cases: 1 failed" in text
    assert "12.5 ms" not in text, "the figures of the earlier run"


def test_a_wrong_path_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        matrix.main(["megatron=/does/not/exist"])
    assert "'megatron=/does/not/exist': wants NAME=PATH" in capsys.readouterr().err


def test_every_committed_row_is_a_case() -> None:
    """docs/frameworks.md is the command's: no row of a case that is gone."""
    names = {case.name for case in matrix.collect_cases()}
    rows, _, _ = matrix.PAGE.read_text().partition("## The frameworks' own command lines")
    lines = [line for line in rows.splitlines() if line.startswith("| ")]
    listed = {line.split("|")[1].strip() for line in lines} - {"case"}
    assert listed <= names


def test_cells_are_escaped() -> None:
    row = Outcome(name="a", framework="F", version="1", feature="x|y", command="c", nodes=2,
                  gpus_per_node=4, cluster="h100-dgx", status="ok", step_virtual_s=0.001,
                  peak_memory_bytes=1 << 20)  # fmt: skip
    assert "| a | 1 | x\\|y | `c` | 2 x 4 | 1 ms | 1.00 MiB | ok |" in page([row])
