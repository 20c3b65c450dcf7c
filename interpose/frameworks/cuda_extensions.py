"""CUDA code that is not PyTorch's own, and memory shared past NCCL: what a simulated GPU cannot run.

Extensions that are compiled while the job runs (torch.utils.cpp_extension.load, load_inline), symmetric
memory, NCCL's user buffers, memory shared with other processes or read from disk past the host, and NCCL
without torch.distributed end with an error that names them and the remedy. A program that only asks nvcc for
its version (Megatron-LM does before it trains) gets an answer: where the machine has no CUDA toolkit,
CUDA_HOME is a folder of phantom's with an nvcc that knows just that.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from interpose.after_import import after_import
from interpose.frameworks.missing_libraries import REMEDY

TOOLKIT = Path(__file__).resolve().parent.parent / "toolkit"


class CudaExtensionRefused(RuntimeError):
    """A CUDA extension that would have to be compiled for the simulated GPU; the text names it."""


class SymmetricMemoryRefused(RuntimeError):
    """Memory that GPUs read of one another directly; the text names the call and the remedy."""


class UserBuffersRefused(RuntimeError):
    """Memory that NCCL itself would allocate and register; the text names the call and the remedy."""


class NotSimulated(RuntimeError):
    """A part of PyTorch's CUDA interface that phantom has not; the text names the call and the remedy."""


def install() -> None:
    """Changes what has to be changed once its module is imported."""
    after_import("torch.utils.cpp_extension", watch_compilation)
    after_import("torch.distributed._symmetric_memory", watch_symmetric_memory)
    after_import("torch.storage", _refuse_shared_memory)
    after_import("torch.cuda.gds", _refuse_direct_storage)
    after_import("torch.cuda.nccl", _refuse_bare_nccl)


def watch_compilation(module: ModuleType) -> None:
    """`module` is torch.utils.cpp_extension: both load and load_inline come through _jit_compile."""
    if module.CUDA_HOME is None:
        module.CUDA_HOME = str(TOOLKIT)  # type: ignore[attr-defined]
    original = module._jit_compile
    signature = inspect.signature(original)

    @functools.wraps(original)
    def _jit_compile(name: str, sources: Sequence[str], *args: Any, **kwargs: Any) -> Any:
        with_cuda = signature.bind(name, sources, *args, **kwargs).arguments.get("with_cuda")
        cuda = [source for source in sources if str(source).endswith((".cu", ".cuh"))]
        if with_cuda or (with_cuda is None and cuda):
            files = ", ".join(Path(source).name for source in cuda or sources)
            raise CudaExtensionRefused(
                f"phantom cannot run the CUDA extension {name!r} (sources: {files}): its kernels would be "
                f"compiled for the GPU and launched past PyTorch's dispatcher. {REMEDY}"
            )
        return original(name, sources, *args, **kwargs)

    module._jit_compile = _jit_compile  # type: ignore[attr-defined]


_SYMMETRIC = {
    "empty": "torch.distributed._symmetric_memory.empty",
    "rendezvous": "torch.distributed._symmetric_memory.rendezvous",
    "enable_symm_mem_for_group": "symmetric memory for a process group",
    "get_symm_mem_workspace": "a symmetric-memory workspace",
    "get_mem_pool": "a pool of symmetric memory",
}


def watch_symmetric_memory(module: ModuleType) -> None:
    """`module` is torch.distributed._symmetric_memory; importing it is no harm."""
    for name, what in _SYMMETRIC.items():
        if hasattr(module, name):
            setattr(module, name, _refusal(getattr(module, name), what))


def _refusal(original: Any, what: str) -> Any:
    @functools.wraps(original)
    def refuse(*_: Any, **__: Any) -> Any:
        raise SymmetricMemoryRefused(
            f"phantom does not simulate {what}: GPUs would read one another's memory past NCCL. Remedy: use "
            f"the ordinary collectives (TorchTitan: leave out async tensor parallelism; Megatron: leave out "
            f"--symmetric-ar-type and NCCL user buffers)"
        )

    return refuse


def refuse_user_buffers(nccl: type) -> None:
    """`nccl` is ProcessGroupNCCL: its `mem_allocator` is how a script asks for NCCL's user buffers."""

    def mem_allocator(_: Any) -> Any:
        raise UserBuffersRefused(
            "phantom does not simulate NCCL user buffers (ProcessGroupNCCL.mem_allocator, for "
            "torch.cuda.MemPool): NCCL would send from registered memory with other kernels and fewer "
            "multiprocessors. Remedy: use the ordinary allocator (Megatron: leave out --use-nccl-ub; "
            "Megatron-FSDP and FSDP2: leave out NCCL user buffers)"
        )

    nccl.mem_allocator = property(mem_allocator)  # type: ignore[attr-defined]


def _refuse_shared_memory(module: ModuleType) -> None:
    module.UntypedStorage._share_cuda_ = _not_simulated(
        "a CUDA tensor sent to another process (CUDA IPC)",
        "send a copy on the host (tensor.cpu()), or use torch.distributed between ranks",
    )


def _refuse_direct_storage(module: ModuleType) -> None:
    for name in ("gds_register_buffer", "gds_deregister_buffer", "GdsFile"):
        refuse = _not_simulated(
            f"torch.cuda.gds.{name} (GPUDirect storage)",
            "read and write through the host, as torch.save does",
        )
        setattr(module, name, refuse)


def _refuse_bare_nccl(module: ModuleType) -> None:
    for name in ("init_rank", "all_reduce", "reduce", "broadcast", "all_gather", "reduce_scatter"):
        refuse = _not_simulated(
            f"torch.cuda.nccl.{name} (NCCL by hand)", "use torch.distributed, a rank per GPU"
        )
        setattr(module, name, refuse)


def _not_simulated(what: str, remedy: str) -> Any:
    def refuse(*_: Any, **__: Any) -> Any:
        raise NotSimulated(f"phantom does not simulate {what}. Remedy: {remedy}")

    return refuse
