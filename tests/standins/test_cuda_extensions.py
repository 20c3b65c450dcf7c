"""CUDA code that a simulated GPU cannot run is named, with the remedy; a question for nvcc's version is
answered."""

from __future__ import annotations

import subprocess
import types
from pathlib import Path

from interpose.frameworks import cuda_extensions
from standins.running import run_script

SCRIPT = """
import pathlib, torch
from torch.utils import cpp_extension
import torch.distributed._symmetric_memory as symmetric
torch.distributed.init_process_group("nccl")
nccl = torch.distributed.group.WORLD._get_backend(torch.device("cuda"))
pathlib.Path("kernel.cu").write_text("__global__ void nothing() {}")
for call in (
    lambda: cpp_extension.load(name="my_kernels", sources=["kernel.cu"]),
    lambda: cpp_extension.load_inline(name="inline_kernels", cpp_sources="", cuda_sources="void f();"),
    lambda: symmetric.empty(4, device="cuda"),
    lambda: torch.cuda.MemPool(nccl.mem_allocator),
    lambda: torch.cuda.gds.GdsFile("data.bin", 0),
    lambda: torch.cuda.nccl.all_reduce([torch.ones(1, device="cuda")]),
    lambda: torch.ones(1, device="cuda").untyped_storage()._share_cuda_(),
):
    try:
        call()
    except RuntimeError as error:
        print("refused:", error)
x = torch.ones(1, device="cuda")
raise ImportError("libcudart.so.12: cannot open shared object file", name="my_compiled_kernels")
"""


def test_a_cuda_extension_ends_with_its_name_and_the_remedy(tmp_path: Path) -> None:
    log, _ = run_script(tmp_path, SCRIPT, fails=True)
    refused = [line for line in log.splitlines() if line.startswith("refused:")]
    assert len(refused) == 7
    assert "'my_kernels' (sources: kernel.cu)" in refused[0]
    assert "'inline_kernels'" in refused[1]
    assert "_symmetric_memory.empty" in refused[2]
    assert "NCCL user buffers (ProcessGroupNCCL.mem_allocator" in refused[3]
    assert "torch.cuda.gds.GdsFile" in refused[4]
    assert "torch.cuda.nccl.all_reduce" in refused[5]
    assert "CUDA IPC" in refused[6]
    assert all("Remedy" in line for line in refused)
    assert "the module 'my_compiled_kernels' is a compiled CUDA extension (it wants libcudart.so.12)" in log


def test_nvcc_knows_its_version_and_compiles_nothing() -> None:
    """Megatron-LM 0.16 reads CUDA_HOME/bin/nvcc -V before it trains."""
    module = types.ModuleType("torch.utils.cpp_extension")
    module.CUDA_HOME = None  # type: ignore[attr-defined]
    module._jit_compile = lambda *args, **kwargs: "built"  # type: ignore[attr-defined]
    cuda_extensions.watch_compilation(module)
    nvcc = Path(module.CUDA_HOME) / "bin" / "nvcc"  # type: ignore[attr-defined]
    words = subprocess.check_output([nvcc, "-V"], text=True).split()
    release = words[words.index("release") + 1].split(".")
    assert (release[0], release[1][0]) == ("12", "8")
    failed = subprocess.run([nvcc, "-c", "kernel.cu"], capture_output=True, text=True)
    assert failed.returncode == 1
    assert "no CUDA compiler" in failed.stderr
    # C++ without CUDA is compiled as ever.
    assert module._jit_compile("host_code", ["code.cpp"], with_cuda=None) == "built"  # type: ignore[attr-defined]


def test_a_toolkit_that_is_installed_is_left_alone() -> None:
    module = types.ModuleType("torch.utils.cpp_extension")
    module.CUDA_HOME = "/usr/local/cuda"  # type: ignore[attr-defined]
    module._jit_compile = lambda *args, **kwargs: None  # type: ignore[attr-defined]
    cuda_extensions.watch_compilation(module)
    assert module.CUDA_HOME == "/usr/local/cuda"  # type: ignore[attr-defined]
