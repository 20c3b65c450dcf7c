"""PYTORCH_CUDA_ALLOC_CONF: each setting in a process of its own, as it is read when the allocator starts."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PRELUDE = """
import conftest, torch
MIB = 1 << 20
def take(size, device="cuda"):
    return torch.UntypedStorage(size, device=device)
def held():
    return torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
def stat(name):
    return torch.cuda.memory_stats()[name]
torch.cuda.init()
"""
HERE = Path(__file__).parent


def run(
    code: str, settings: str, variable: str = "PYTORCH_CUDA_ALLOC_CONF"
) -> subprocess.CompletedProcess[str]:
    path = f"{HERE}:{HERE.parents[0]}:{HERE.parents[1]}"
    environment = {**os.environ, "PYTHONPATH": path, variable: settings}
    return subprocess.run(
        [sys.executable, "-c", PRELUDE + code], capture_output=True, text=True, timeout=240, env=environment
    )


CASES = {
    # A segment grows page by page (20 MiB for large blocks, 2 MiB for small ones), so that what was freed in
    # the middle can be returned and the end reused.
    "expandable segments": (
        "expandable_segments:True",
        """
a = take(30 * MIB)
assert held() == (30 * MIB, 40 * MIB), held()
b = take(30 * MIB)
assert held() == (60 * MIB, 60 * MIB), held()
assert b.data_ptr() == a.data_ptr() + 30 * MIB
del a
torch.cuda.empty_cache()
assert held() == (30 * MIB, 40 * MIB), held()   # the page shared with b stays
c = take(100 * MIB)
assert held()[0] == 130 * MIB
assert c.data_ptr() == b.data_ptr() + 30 * MIB
(segment,) = torch.cuda.memory_snapshot()   # mapped from 20 MiB on
assert segment["is_expandable"] and segment["total_size"] == 140 * MIB
assert segment["address"] == b.data_ptr() - 10 * MIB
del b, c
torch.cuda.empty_cache()
assert held() == (0, 0), held()
small = take(100)
assert held() == (512, 2 * MIB)
del small
big = take(78 << 30)
try:
    take(1 << 30)
except torch.OutOfMemoryError as error:
    assert "1024.00 MiB" in str(error)
else:
    raise AssertionError
del big
fragmented = [take(10 << 30) for _ in range(7)]
del fragmented[::2]
whole = take(39 << 30)   # without expandable segments: four separate holes of 10 GiB, out of memory
assert held()[0] == 69 << 30
""",
    ),
    "fragmented without them": (
        "",
        """
fragmented = [take(10 << 30) for _ in range(7)]
del fragmented[::2]
whole = take(39 << 30)   # cached segments are returned first
assert stat("num_alloc_retries") == 1
assert held() == (69 << 30, 69 << 30)
""",
    ),
    "max_split_size_mb": (
        "max_split_size_mb:100",
        """
a = take(200 * MIB)
del a
b = take(50 * MIB)   # must not cut an oversize block
assert held() == (50 * MIB, 250 * MIB), held()
c = take(185 * MIB)  # oversize: within 20 MiB of the request, used whole
assert held() == (250 * MIB, 250 * MIB), held()
assert stat("oversize_allocations.current") == 1
assert stat("oversize_segments.current") == 1
assert stat("max_split_size") == 100 * MIB
del c
d = take(150 * MIB)
assert held() == (200 * MIB, 400 * MIB), held()
""",
    ),
    "roundup_power2_divisions": (
        "roundup_power2_divisions:4",
        """
a = take(1200 * MIB)   # between 1024 and 2048 in four steps: 1280
assert held() == (1280 * MIB, 1280 * MIB), held()
assert stat("requested_bytes.all.current") == 1200 * MIB
b = take(1024 * MIB)
assert held()[0] == 2304 * MIB
""",
    ),
    "garbage_collection_threshold": (
        "garbage_collection_threshold:0.5",
        """
torch.cuda.set_per_process_memory_fraction(0.9)   # 72 GiB, collected above 36
a = take(30 << 30)
del a
b = take(20 << 30)
c = take(30 << 30)
assert held()[1] <= 60 << 30
del b
d = take(40 << 30)    # 50 GiB held is above the threshold: the free 20 GiB go first
assert held() == (70 << 30, 70 << 30), held()
assert stat("num_alloc_retries") == 0
""",
    ),
    "keys of the CUDA build are known": (
        "backend:native,release_lock_on_cudamalloc:True,pinned_use_cuda_host_register:True",
        "assert torch.cuda.get_allocator_backend() == 'native'; a = take(1); assert held() == (512, 2 * MIB)",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_setting(case: str) -> None:
    settings, code = CASES[case]
    done = run(code, settings)
    assert done.returncode == 0, done.stderr


def test_new_variable_name() -> None:
    done = run(
        "take(1200 * MIB); assert held()[1] == 1280 * MIB, held()",
        "roundup_power2_divisions:4",
        "PYTORCH_ALLOC_CONF",
    )
    assert done.returncode == 0, done.stderr


def test_settings_at_run_time() -> None:
    done = run(
        "torch._C._accelerator_setAllocatorSettings('expandable_segments:True')\n"
        "a = take(30 * MIB); assert held() == (30 * MIB, 40 * MIB), held()",
        "",
    )
    assert done.returncode == 0, done.stderr
