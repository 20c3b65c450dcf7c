"""summary.json: shown, drawn, exported and compared."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from report.synthetic import write_run

from fuzz.commands import ends_well
from fuzz.limits import FUZZ
from fuzz.mutation import json_texts


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recorded run of two ranks."""
    folder = tmp_path_factory.mktemp("run")
    write_run(folder, ranks=2, steps=2)
    (folder / "real.json").write_text("[1.0, 2.0]")
    (folder / "good.json").write_bytes((folder / "summary.json").read_bytes())
    return folder


COMMANDS = (
    ("report",),
    ("report", "--json"),
    ("report", "--html"),
    ("report", "--memory"),
    ("export", "--timeline", "x.pftrace"),
    ("export", "--chakra", "x"),
    ("export", "--kineto", "kineto"),
    ("compare", "--real", "real.json"),
)


@FUZZ
@given(data=st.data())
def test_a_changed_summary_gives_a_result_or_one_sentence(run_dir: Path, data: st.DataObject) -> None:
    document = json.loads((run_dir / "good.json").read_text())
    (run_dir / "summary.json").write_bytes(data.draw(json_texts(document)))
    name, *options = data.draw(st.sampled_from(COMMANDS))
    options = [str(run_dir / word) if word[0] != "-" else word for word in options]
    ends_well(name, str(run_dir), *options)


@FUZZ
@given(data=st.data())
def test_changed_measurements_give_a_result_or_one_sentence(run_dir: Path, data: st.DataObject) -> None:
    (run_dir / "summary.json").write_bytes((run_dir / "good.json").read_bytes())
    document = {"steps": [{"index": 0, "real_s": 1.0}, {"index": 1, "real_s": 2.0}]}
    (run_dir / "changed.json").write_bytes(data.draw(json_texts(document)))
    ends_well("compare", str(run_dir), "--real", str(run_dir / "changed.json"))


@FUZZ
@given(data=st.data())
def test_a_changed_trace_gives_a_budget_or_one_sentence(run_dir: Path, data: st.DataObject) -> None:
    (run_dir / "summary.json").write_bytes((run_dir / "good.json").read_bytes())
    events = [
        {
            "ph": "X",
            "name": "ProfilerStep#1",
            "cat": "user_annotation",
            "ts": 1.0,
            "dur": 90.0,
            "pid": 1,
            "tid": 1,
        },
        {
            "ph": "X",
            "name": "aten::mm",
            "cat": "cpu_op",
            "ts": 2.0,
            "dur": 8.0,
            "pid": 1,
            "tid": 1,
            "args": {},
        },
    ]
    (run_dir / "trace.json").write_bytes(data.draw(json_texts({"traceEvents": events})))
    real = ("--real", str(run_dir / "real.json"))
    ends_well("compare", str(run_dir), *real, "--trace", str(run_dir / "trace.json"))
