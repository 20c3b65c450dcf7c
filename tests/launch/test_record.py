"""`phantom record`: real runs, without a simulator."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from phantom.cli.main import cli
from phantom.launch.errors import PhantomError, UsageError
from phantom.launch.record import combine

SCRIPT = """
import sys, time, torch
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
if len(sys.argv) > 1:
    import torch.distributed as dist
    dist.init_process_group("gloo")
for step in range(6):
    model(torch.ones(2, 4)).sum().backward()
    time.sleep(0.05)
    optimizer.step()
    optimizer.step()  # of the same step: no backward pass between them
    optimizer.zero_grad()
print("cuda", torch.cuda.is_available())
"""


def record(folder: Path, *arguments: str) -> Result:
    script = folder / "train.py"
    script.write_text(SCRIPT)
    given = [text.replace("train.py", str(script)) for text in arguments]
    return CliRunner().invoke(
        cli, ["record", "--out", str(folder / "real.json"), *given], standalone_mode=False
    )


def test_steps_of_a_real_run(tmp_path: Path) -> None:
    done = record(tmp_path, "--trace", str(tmp_path / "trace.json"), "--trace-steps", "3:4", "--", "train.py")
    assert done.return_value == 0, (done.exception, done.output)
    content = json.loads((tmp_path / "real.json").read_text())
    assert [step["index"] for step in content["steps"]] == [1, 2, 3, 4, 5]
    assert all(0.05 <= step["real_s"] < 5 for step in content["steps"])
    assert all(step["cpu_s"] < step["real_s"] + 0.01 for step in content["steps"][:1])
    assert [step["index"] for step in content["steps"] if step["traced"]] == [3, 4]
    names = {event.get("name") for event in json.loads((tmp_path / "trace.json").read_text())["traceEvents"]}
    assert "aten::addmm" in names


def test_ranks_meet_and_the_number_of_steps_is_limited(tmp_path: Path) -> None:
    done = record(tmp_path, "-G", "2", "--steps", "3", "--", "train.py", "distributed")
    assert done.return_value == 0, (done.exception, done.output)
    content = json.loads((tmp_path / "real.json").read_text())
    assert content["world_size"] == 2
    assert [step["index"] for step in content["steps"]] == [1, 2]


def test_the_jobs_status_is_ours(tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text("import sys; sys.exit(7)")
    done = record(tmp_path, "--", str(tmp_path / "bad.py"))
    assert isinstance(done.exception, PhantomError)
    assert done.exception.status == 7


def test_a_job_without_steps_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "idle.py").write_text("import torch")
    done = record(tmp_path, "--", str(tmp_path / "idle.py"))
    assert isinstance(done.exception, UsageError)
    assert "no step was seen" in str(done.exception)


@pytest.mark.parametrize("span", ["4", "0:2", "5:3", "a:b"])
def test_bad_spans_are_refused(tmp_path: Path, span: str) -> None:
    done = record(tmp_path, "--trace", str(tmp_path / "t.json"), "--trace-steps", span, "--", "train.py")
    assert isinstance(done.exception, UsageError)


def rank(number: int, *ends_ms: int) -> dict[str, Any]:
    ends = [[index, end * 10**6, end * 10**5] for index, end in enumerate(ends_ms)]
    return {"rank": number, "world_size": 2, "torch": "2", "device": "cpu", "threads": 1, "ends_ns": ends}


def test_a_step_ends_with_its_slowest_rank() -> None:
    steps = combine([rank(1, 10, 30, 45), rank(0, 12, 25, 50)])["steps"]
    assert [step["real_s"] for step in steps] == pytest.approx([0.018, 0.020])
    assert [step["cpu_s"] for step in steps] == pytest.approx([0.0013, 0.0025])
