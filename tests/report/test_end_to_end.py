"""A real run: what is recorded adds up, and every report and export comes out of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import simulation

from interpose.build import is_current
from phantom.export.chakra.check import check
from phantom.export.chakra.export import export_chakra
from phantom.report.critical_path import critical_path
from phantom.report.memory import GRADIENTS, OPTIMIZER_STATE, PARAMETERS, categories, peak
from phantom.report.overview import breakdown
from phantom.timeline.recording import Recording, load
from report.test_timeline import Slices, parse

ROOT = Path(__file__).parents[2]
SCRIPT = """
import os, torch, torch.distributed as dist, torch.nn as nn
from torch.nn.parallel import DistributedDataParallel
device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
torch.cuda.set_device(device)
dist.init_process_group("nccl", device_id=device)
blocks = [nn.Sequential(nn.Linear(1024, 4096), nn.GELU(), nn.Linear(4096, 1024)) for _ in range(4)]
model = nn.Sequential(*blocks)
model = DistributedDataParallel(model.to(device), gradient_as_bucket_view=True)
optimizer = torch.optim.AdamW(model.parameters())
for step in range(9):
    x = torch.randn(512 * (1 + dist.get_rank()), 1024, device=device)
    model(x).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
"""
PARAMETER_BYTES = 4 * 4 * (2 * 1024 * 4096 + 1024 + 4096)


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Recording:
    if not is_current():
        pytest.skip("the extension is not built: python -m interpose.build")
    folder = tmp_path_factory.mktemp("run")
    (folder / "job.py").write_text(SCRIPT)
    options = ("-q", "--steps", "3", "--timeline")
    done = simulation.simulate(folder / "out", str(folder / "job.py"), gpus=2, options=options)
    assert "step time, median" in done.stdout
    return load(folder / "out")


def test_every_step_of_every_rank_adds_up(recording: Recording) -> None:
    assert recording.step_indices == [0, 1, 2]
    for spool in recording.ranks.values():
        for step in spool.steps:
            assert step.compute_ps + step.exposed_ps + step.idle_ps == step.end_ps - step.begin_ps
            found = breakdown(spool, step.begin_ps, step.end_ps)
            assert (found.compute_ps, found.exposed_ps) == (step.compute_ps, step.exposed_ps)
    for index in recording.step_indices:
        begin_ps, end_ps = recording.step_bounds_ps(index)
        assert sum(segment.duration_ps for segment in critical_path(recording, index)) == end_ps - begin_ps
        assert (end_ps - begin_ps) * 1e-12 == pytest.approx(recording.summary.steps[index].virtual_s)


def test_collectives_meet_their_spans_and_stay_below_the_link(recording: Recording) -> None:
    reduced = [c for c in recording.collectives if c.kind == "all_reduce" and c.size_bytes > 1 << 20]
    assert reduced
    for rank, spool in recording.ranks.items():
        nodes = {
            int(node): int(end) for node, end in spool.spans[spool.communication][["node", "end_ps"]].tolist()
        }
        assert all(nodes[dict(c.members)[rank]] == c.end_ps for c in reduced)
    limits = {(c.kind, c.bytes): c.bus_limit_bytes_per_s or 0 for c in recording.summary.collectives}
    for c in reduced:
        assert c.ranks == (0, 1)
        assert 0 < c.bus_bandwidth_bytes_per_s <= limits[c.kind, c.size_bytes]


def test_links_carried_what_the_collectives_sent(recording: Recording) -> None:
    sent = {
        kind: sum(c.size_bytes for c in recording.collectives if c.kind == kind)
        for kind in ("all_reduce", "broadcast")
    }
    assert sent["broadcast"] > 0
    links = {link.name: link for link in recording.links.links}
    for rank in range(2):
        # Two ranks: each sends 2 (n-1)/n = 1 times the buffer, whatever the algorithm; the root of DDP's
        # broadcast sends that as well.
        carried = links[f"node0/gpu{rank}->node0/nvswitch"]
        wanted = sent["all_reduce"] + (sent["broadcast"] if rank == 0 else 0)
        assert carried.bytes.sum() == pytest.approx(wanted, rel=0.01)
        assert carried.bytes.max() <= carried.capacity_bytes_per_s * recording.links.bin_ps * 1e-12 * (
            1 + 1e-9
        )
    kinds = {entry.kind: entry for entry in recording.summary.links or ()}
    assert 0 < kinds["node*/gpu*->node*/nvswitch"].utilisation < 1


def test_timeline_has_the_sums_of_the_summary(recording: Recording) -> None:
    slices = Slices(parse(recording.folder / "timeline.pftrace"))
    for rank in recording.summary.ranks:
        rows = [
            [a.int_value for a in event.debug_annotations]
            for process, thread, *_, event in slices.all
            if process.startswith(f"rank {rank.rank} ") and thread == "steps"
        ]
        counted = [row for row in rows if row[0] >= 1]
        for column, key in ((1, "compute_s"), (2, "exposed_communication_s"), (3, "idle_s")):
            assert sum(row[column] for row in counted) * 1e-12 == pytest.approx(getattr(rank, key), rel=1e-12)


def test_memory_knows_what_the_optimizer_holds(recording: Recording) -> None:
    spool = recording.ranks[0]
    found = peak(spool)
    assert found is not None
    assert found.allocated_bytes == recording.summary.ranks[0].peak_allocated_bytes
    assert sum(found.by_category.values()) == found.allocated_bytes
    # Each tensor's block is rounded up to 512 bytes.
    assert found.by_category[PARAMETERS] == pytest.approx(PARAMETER_BYTES, rel=0.001)
    assert found.by_category[OPTIMIZER_STATE] == pytest.approx(2 * PARAMETER_BYTES, rel=0.001)
    assert GRADIENTS in categories(spool)


def test_reports_and_exports_come_out(recording: Recording, tmp_path: Path) -> None:
    page = (recording.folder / "report.html").read_text()
    assert "aten::addmm" in page
    assert "all_reduce" in page
    *paths, _ = export_chakra(recording, tmp_path / "trace")
    assert check(paths) == []
    assert json.loads((recording.folder / "summary.json").read_text())["detail"]["ranks"] == 2


def test_an_oom_says_who_holds_the_memory_and_what_would_fit(tmp_path: Path) -> None:
    if not is_current():
        pytest.skip("the extension is not built: python -m interpose.build")
    (tmp_path / "job.py").write_text(
        "import torch, torch.nn as nn\n"
        "model = nn.Sequential(*[nn.Linear(16384, 16384, bias=False) for _ in range(8)]).cuda()\n"
        "optimizer = torch.optim.AdamW(model.parameters())\n"
        "for step in range(3):\n"
        "    model(torch.randn(65536 << (2 * step), 16384, device='cuda')).sum().backward()\n"
        "    optimizer.step()\n"
        "    optimizer.zero_grad()\n"
    )
    done = simulation.simulate(tmp_path / "out", str(tmp_path / "job.py"), gpus=1, fails=True)
    assert done.status not in (0, 2, 3, 4)
    assert "rank 0 ran out of memory at" in done.stdout
    assert "asked for 16.00 GiB" in done.stdout
    assert "what would fit" in done.stdout
    summary = done.summary
    assert summary["status"] == "oom"
    (fault,) = summary["faults"]
    assert sum(fault["holders"].values()) == fault["allocated_bytes"]
    assert fault["holders"]["parameters"] == 8 << 30
    assert fault["holders"]["optimizer state"] == pytest.approx(16 << 30, rel=0.001)
