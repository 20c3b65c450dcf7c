"""What `torch.cuda`'s own Python answers on the virtual device."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch


def test_identity(device: ModuleType) -> None:
    assert torch.cuda.is_available()
    assert torch.backends.cuda.is_built()
    assert torch.cuda.device_count() == 8
    assert torch.version.cuda == "12.8"
    assert torch.cuda.get_device_name() == "NVIDIA H100 80GB HBM3"
    assert torch.cuda.get_device_capability() == (9, 0)
    assert torch.cuda.is_bf16_supported()
    assert torch.backends.cudnn.is_available()
    assert torch.backends.cudnn.version() == 91002
    assert torch.cuda.nccl.version() >= (2, 20)
    properties = torch.cuda.get_device_properties(3)
    assert properties.total_memory == 80 << 30
    assert properties.multi_processor_count == 132
    assert properties.shared_memory_per_block_optin == 232448
    assert str(properties.uuid) != str(torch.cuda.get_device_properties(4).uuid)
    with pytest.raises(AssertionError, match="Invalid device id"):
        torch.cuda.get_device_properties(8)


def test_every_name_is_a_function_of_its_own(device: ModuleType) -> None:
    seen: dict[int, str] = {}
    for name in dir(torch._C):
        if name.startswith("_cuda_"):
            value = getattr(torch._C, name)
            assert id(value) not in seen, (name, seen[id(value)])
            seen[id(value)] = name
    assert len(seen) > 80
    assert not hasattr(torch._C, "_cuda_setRNGState")  # Megatron decides by it


def test_devices(device: ModuleType) -> None:
    with torch.cuda.device(5):
        assert torch.cuda.current_device() == 5
        with torch.cuda.device(-1):
            assert torch.cuda.current_device() == 5
    assert torch.cuda.current_device() == 0
    with pytest.raises(RuntimeError, match="invalid device ordinal"):
        torch.cuda.set_device(8)


def test_visible_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    from interpose.cuda.devices import visible_devices

    for listed, count in [(None, 8), ("", 0), ("0", 1), ("3,1", 2), ("0,9,1", 1), ("1,1", 1), ("-1", 0)]:
        if listed is None:
            monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        else:
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", listed)
        assert visible_devices(8) == count, listed


def test_rng_state_round_trip(device: ModuleType) -> None:
    torch.cuda.manual_seed(1234)
    assert torch.cuda.initial_seed() == 1234
    state = torch.cuda.get_rng_state()
    assert state.dtype == torch.uint8
    assert state.numel() == 16
    torch.cuda.manual_seed(99)
    torch.cuda.set_rng_state(state)
    assert torch.cuda.initial_seed() == 1234
    assert torch.equal(torch.cuda.get_rng_state(), state)
    torch.manual_seed(7)  # seeds all devices
    assert [torch.cuda.default_generators[i].initial_seed() for i in range(8)] == [7] * 8


def test_generators(device: ModuleType) -> None:
    generator = torch.Generator("cuda:2")
    assert generator.device == torch.device("cuda", 2)
    generator.manual_seed(5)
    generator.set_offset(8)
    with pytest.raises(RuntimeError, match="multiple of 4"):
        generator.set_offset(3)
    copy = generator.clone_state()
    shared = generator.graphsafe_get_state()
    generator.set_offset(16)
    assert copy.get_offset() == 8
    assert shared.get_offset() == 16
    generator.graphsafe_set_state(copy)
    assert generator.get_offset() == 8


def test_legacy_tensor_types_and_nvtx(device: ModuleType) -> None:
    assert isinstance(torch.cuda.FloatTensor, type)
    assert torch.cuda.nvtx.range_push("a") == 0
    assert torch.cuda.nvtx.range_push("b") == 1
    torch.cuda.nvtx.range_pop()
    torch.cuda.nvtx.range_pop()
    with torch.cuda.nvtx.range("c"):
        torch.cuda.nvtx.mark("m")
    assert torch.cuda.cudart().cudaProfilerStart() == torch.cuda.cudart().cudaError.success
    torch.cuda.check_error(torch.cuda.cudart().cudaProfilerStop())
    with pytest.raises(torch.cuda.CudaError, match="out of memory"):
        torch.cuda.check_error(2)


def test_nvml_queries(device: ModuleType) -> None:
    assert torch.cuda.utilization() == 100
    assert torch.cuda.device_memory_used() == 1 << 30  # context and NCCL allowance
    assert torch.cuda.clock_rate() > 0


def test_pinned_memory(device: ModuleType) -> None:
    plain = torch.arange(10)
    assert not plain.is_pinned()
    pinned = plain.pin_memory()
    assert pinned.is_pinned()
    assert torch.equal(pinned, plain)
    assert torch.empty(1000, pin_memory=True).is_pinned()
    before = torch.cuda.host_memory_stats()["allocated_bytes.current"]
    kept = torch.empty(3 << 20, dtype=torch.uint8, pin_memory=True)
    assert torch.cuda.host_memory_stats()["allocated_bytes.current"] - before == 4 << 20
    del kept


def test_touching_device_memory_is_explained() -> None:
    code = (
        "import conftest, ctypes, torch\n"
        "s = torch.UntypedStorage(1 << 20, device='cuda:1')\n"
        "ctypes.string_at(s.data_ptr(), 8)\n"
    )
    here = Path(__file__).parent
    environment = {**os.environ, "PYTHONPATH": f"{here}:{here.parents[0]}:{here.parents[1]}"}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, env=environment
    )
    assert done.returncode == -11
    assert "host code touched virtual device memory" in done.stderr
    assert "(cuda:1)" in done.stderr
