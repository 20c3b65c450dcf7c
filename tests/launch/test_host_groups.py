"""Gloo groups: virtual time does not depend on who comes when, and methods are those of the real class."""

from __future__ import annotations

from pathlib import Path

import pytest
from simulation import simulate

from interpose import build

pytestmark = pytest.mark.skipif(
    not build.is_current(), reason="extension not built: python -m interpose.build"
)

# An Event waits for real time. LATE posts when the other has waited for the end already; with 2 nobody is
# late, and both have been told the end before they wait for it: answers bring what has become final.
JOB = """
import os, threading, time, torch, torch.distributed as dist
dist.init_process_group("nccl")
group = dist.new_group(backend="gloo")
rank, late = dist.get_rank(), int(os.environ["LATE"])
count, x = torch.ones(4), torch.ones(8, device="cuda")
started = time.perf_counter()
for _ in range(3):
    if rank == late:
        threading.Event().wait(0.4)
    work = dist.all_reduce(count, group=group, async_op=True)
    time.sleep(0.01)
    for _ in range(3):
        x.sum().item()
        if late == 2:
            threading.Event().wait(0.1)
    work.wait()
print("took", time.perf_counter() - started, flush=True)
dist.destroy_process_group()
"""


def test_who_comes_late_in_real_time_changes_no_virtual_time(tmp_path: Path) -> None:
    script = tmp_path / "job.py"
    script.write_text(JOB)
    printed = [
        simulate(tmp_path / late, str(script), gpus=2, environment={"LATE": late}).logs
        for late in ("0", "1", "2")
    ]
    assert "took" in printed[0][0]
    assert printed[0] == printed[1] == printed[2]


# The wrapped group's Python object lives no longer than one statement here.
METHODS = """
import datetime, torch, torch.distributed as dist
from torch.distributed.distributed_c10d import ProcessGroupGloo, _set_pg_timeout
dist.init_process_group("cpu:gloo,cuda:nccl")
group = dist.new_group(backend="cpu:gloo,cuda:nccl")
_set_pg_timeout(datetime.timedelta(seconds=78), group)
gloo = group._get_backend(torch.device("cpu"))
assert isinstance(gloo, ProcessGroupGloo)
gloo._set_default_timeout(datetime.timedelta(seconds=79))
nccl = group._get_backend(torch.device("cuda"))
print("timeouts", nccl.options._timeout, gloo.options._timeout, flush=True)
try:
    gloo.no_such_method()
except AttributeError as error:
    print("said", error, flush=True)
"""


def test_methods_of_gloo_are_those_of_the_wrapped_group(tmp_path: Path) -> None:
    script = tmp_path / "job.py"
    script.write_text(METHODS)
    printed = simulate(tmp_path / "run", str(script), gpus=1).logs[0]
    assert "timeouts 0:01:18 0:01:19" in printed
    assert "object has no attribute 'no_such_method'" in printed
