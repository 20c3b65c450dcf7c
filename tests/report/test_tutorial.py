"""The tutorial's tested commands run, and give what it says they give."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from interpose.build import is_current

ROOT = Path(__file__).parents[2]
TUTORIAL = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")


def command(name: str) -> list[str]:
    """The command behind the mark `<!-- tested: NAME -->`."""
    found = re.search(rf"<!-- tested: {name} -->\n    phantom (.*)\n", TUTORIAL)
    assert found is not None
    return found.group(1).split()


def test_the_small_job_runs_and_says_what_the_tutorial_says(tmp_path: Path) -> None:
    if not is_current():
        pytest.skip("the extension is not built: python -m interpose.build")
    given = command("small")
    assert given[0] == "run"
    arguments = ["run", "--out", str(tmp_path / "out"), *given[1:]]
    done = subprocess.run(
        [sys.executable, "-m", "phantom.cli.main", *arguments],
        cwd=ROOT, capture_output=True, text=True, timeout=280,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    said = "TP 2 x PP 2 x DP 1, 8 micro-batches, 0.48B parameters on rank 0"
    assert said in TUTORIAL
    assert said in done.stdout
    for line in ("step time, median", "pipeline bubble", "peak memory per rank", "all_reduce", "send_recv"):
        assert line in done.stdout
    step = re.search(r"step 0: ([\d.]+) ms, ([\d,]+) tokens/s", done.stdout)
    assert step is not None
    assert float(step[1]) / 1e3 * int(step[2].replace(",", "")) == pytest.approx(8 * 2048, rel=1e-3)


def test_files_and_options_that_the_docs_name_exist() -> None:
    from phantom.cli.export import export
    from phantom.cli.report import report
    from phantom.cli.run import run

    options = {name for cmd in (run, report, export) for option in cmd.params for name in option.opts}
    known = options | {"--tp", "--pp", "--layers", "--global-batch"}
    for page in ("tutorial.md", "results.md"):
        text = (ROOT / "docs" / page).read_text(encoding="utf-8")
        assert set(re.findall(r"(?<![\w<!-])--[a-z][a-z-]*", text)) <= known
        for name in re.findall(r"(?:docs|examples)/[\w.-]+\.(?:md|py)", text):
            assert (ROOT / name).exists(), name
