"""A forked child of a process that has used CUDA cannot use it, as on a real machine; it does not hang."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import simulation

from interpose import build

pytestmark = [
    pytest.mark.skipif(not build.is_current(), reason="extension not built: python -m interpose.build"),
    pytest.mark.timeout(180),
]

FORK = """
import os, torch
held = torch.ones(1, device="cuda")
def attempt(what, use):
    try:
        use()
        print(what, "worked", flush=True)
    except RuntimeError as error:
        print(what, error, flush=True)
child = os.fork()
if child == 0:
    attempt("new", lambda: torch.ones(2, device="cuda"))
    attempt("moved", lambda: torch.ones(2).cuda())
    attempt("known", lambda: held + 1)
    attempt("host", lambda: torch.ones(2) + 1)
    del held
    os._exit(0)
print("status", os.waitpid(child, 0)[1], flush=True)
print("parent", (held + 1).shape, flush=True)
"""

WORKER = """
import torch
from torch.utils.data import DataLoader, Dataset
class Made(Dataset):
    def __len__(self): return 8
    def __getitem__(self, index): return torch.zeros(4, device="cuda")
torch.zeros(1).cuda()
for batch in DataLoader(Made(), 4, num_workers=1):
    print(batch.device)
"""

BEFORE = """
import os, torch
torch.cuda.device_count()
child = os.fork()
if child == 0:
    print("child", torch.ones(2, device="cuda").shape, flush=True)
    raise SystemExit
print("status", os.waitpid(child, 0)[1], flush=True)
"""


def run(tmp_path: Path, text: str, *, fails: bool = False) -> str:
    script = tmp_path / "script.py"
    script.write_text(text)
    done = simulation.simulate(tmp_path / "run", str(script), gpus=1, timeout_s=90, fails=fails)
    return done.logs[0] + done.stderr


def test_a_fork_after_cuda_was_used_cannot_use_it(tmp_path: Path) -> None:
    log = run(tmp_path, FORK)
    for what in ("new", "moved", "known"):
        assert f"{what} Cannot re-initialize CUDA in forked subprocess" in log
    assert "host worked" in log
    assert f"status {os.EX_OK}" in log
    assert "parent torch.Size([1])" in log


def test_a_forked_loader_worker_that_touches_cuda_ends_the_job(tmp_path: Path) -> None:
    log = run(tmp_path, WORKER, fails=True)
    assert "Caught RuntimeError in DataLoader worker process 0" in log
    assert "Cannot re-initialize CUDA in forked subprocess" in log


def test_a_fork_before_cuda_is_used_may_use_it(tmp_path: Path) -> None:
    log = run(tmp_path, BEFORE)
    assert "child torch.Size([2])" in log
    assert f"status {os.EX_OK}" in log
