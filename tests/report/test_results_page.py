"""docs/results.md explains every key of summary.json and every column of report.html, and nothing else."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import unescape
from pathlib import Path
from typing import Any

import pytest
import simulation

from interpose.build import is_current
from phantom.report.finish import finish
from phantom.report.page import render
from phantom.results.run_summary import summary_from
from phantom.timeline.recording import load
from report.synthetic import write_run

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
MAPS = ("gpu.peak_flops", "options", "ranks[].host_held_bytes", "ranks[].host_work", "faults[].holders")
"""Keys whose own keys are names of the user's or the script's."""
SCRIPT = """
import os, torch, torch.distributed as dist, torch.nn as nn
device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl", device_id=device)
rank = dist.get_rank()
model = nn.Linear(512, 512).to(device)
optimizer = torch.optim.AdamW(model.parameters())
peer = torch.zeros(4096, device=device)
for step in range(3):
    loss = model(torch.randn(64, 512, device=device)).sum()
    loss.backward()
    dist.all_reduce(model.weight.grad)
    dist.send(peer, 1) if rank == 0 else dist.recv(peer, 0)
    print(loss.item())
    optimizer.step()
    optimizer.zero_grad()
try:
    torch.empty(1 << 40, device=device)
except torch.OutOfMemoryError:
    pass
torch.empty(1 << 40, device=device)
"""


def documented() -> set[str]:
    section = PAGE.partition("## summary.json, key by key")[2].partition("\n## ")[0]
    rows = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    return {key for cell in rows for key in re.findall(r"`([^`]+)`", cell)}


def keys(value: Any, path: str = "") -> Iterator[str]:
    """Every leaf as results.md writes it."""
    if isinstance(value, dict):
        for name, entry in value.items():
            yield from keys(entry, f"{path}.{'*' if path in MAPS else name}".lstrip("."))
    elif isinstance(value, list):
        for entry in value:
            yield from keys(entry, f"{path}[]")
    else:
        yield path


@pytest.fixture(scope="module")
def summary(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Of a run that has nearly everything in it: messages, unknown values, an end for lack of memory."""
    if not is_current():
        pytest.skip("the extension is not built: python -m interpose.build")
    folder = tmp_path_factory.mktemp("run")
    (folder / "job.py").write_text(SCRIPT)
    options = ("-q", "--tokens-per-step", "64", "--samples-per-step", "2")
    done = simulation.simulate(folder / "out", str(folder / "job.py"), gpus=2, options=options, fails=True)
    assert done.summary["status"] == "oom", done.stdout + done.stderr
    return done.summary


def test_every_key_of_a_summary_is_explained(summary: dict[str, Any]) -> None:
    assert set(keys(summary)) - documented() == set()


def test_every_explained_key_is_told_by_a_run_or_by_the_program(summary: dict[str, Any]) -> None:
    told = set(keys(summary))
    source = "".join(
        path.read_text(encoding="utf-8")
        for folder in ("results", "report")
        for path in (ROOT / "phantom" / folder).glob("*.py")
    )
    for key in documented() - told:
        name = re.split(r"[.\[]", key.replace(".*", "").replace("[]", ""))[-1]
        # A typed part of the summary declares the key as a field, other writers name it in quotes.
        assert re.search(rf'"{name}"|^    {name}: ', source, re.M), (
            f"docs/results.md explains {key}, which nothing writes"
        )


def test_every_column_of_the_page_is_explained(tmp_path: Path) -> None:
    write_run(tmp_path)
    finish(tmp_path, timeline=False, options={"seed": 0})
    page = render(load(tmp_path))
    section = PAGE.partition("## report.html, table by table")[2].partition("\n## ")[0]
    rows = [line.split("|") for line in section.splitlines() if line.startswith("|")]
    explained = {name.strip() for row in rows for name in row[2].split(",")}
    explained |= {row[2].strip() for row in rows}
    columns = {
        unescape(re.sub("<.*?>", "", head)) for head in re.findall(r'<th scope="col".*?</th>', page, re.S)
    }
    assert len(columns) > 30
    assert columns - explained - {""} == set()


def test_every_line_of_the_terminal_table_is_explained(summary: dict[str, Any]) -> None:
    from phantom.terminal.figures import rows

    section = PAGE.partition("## The table")[2].partition("\n## ")[0]
    told = [label.strip() for label, _ in rows(summary_from(summary))]
    assert len(told) > 8
    for label in told:
        words = [word for word in re.split(r"[,/ ]+", label) if word not in ("of", "it")]
        assert all(word in section for word in words), f"docs/results.md does not explain {label!r}"
