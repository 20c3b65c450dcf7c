"""Explains, under the traceback of a job that ends with it, that a library or program of CUDA is not there.

`cupy` or `libcudart.so` are missing where there is no GPU, and installing them would not help: what they
launch goes past PyTorch. The text names the thing and the remedy.
"""

from __future__ import annotations

import re
import sys
from pathlib import PurePath
from types import TracebackType

REMEDY = (
    "Remedy: switch the feature off that needs it, or use the library's PyTorch path; a library that phantom "
    "stands in for has to be uninstalled from the job's Python (docs/stand-ins.md). Your own operators can "
    "be simulated when they are registered with torch.library and have a fake (Meta) kernel."
)
_CUDA_LIBRARY = re.compile(
    r"\blib(cudart|cublas|cublasLt|cuda|cudnn|cufft|cufile|cupti|curand|cusparse|cusolver|nccl|nvrtc|nvJitLink|"
    r"nvidia-ml|nvshmem|nvToolsExt|c10_cuda|torch_cuda)[\w.]*\.so[.\d]*|\bNVRTC library\b"
)
_LIBRARIES = frozenset(
    (
        "causal_conv1d",
        "cuda",
        "cudf",
        "cudnn",
        "cuml",
        "cupy",
        "deep_ep",
        "deep_gemm",
        "flashinfer",
        "grouped_gemm",
        "kvikio",
        "mamba_ssm",
        "natten",
        "nvidia",
        "nvshmem",
        "pycuda",
        "rmm",
        "tensorrt",
        "torch_tensorrt",
    )
)
"""Top-level modules of libraries that launch kernels past PyTorch and that phantom does not stand in for."""
_MANAGEMENT = frozenset(("pynvml", "nvidia_smi", "pynvml_utils"))
_PROGRAMS = frozenset(
    ("compute-sanitizer", "cuda-gdb", "cuobjdump", "dcgmi", "ncu", "nsys", "nvcc", "nvidia-smi", "nvprof")
)


def explanation(error: BaseException | None) -> str | None:
    """What to add to an error that comes of a missing library or program of CUDA; None for other errors."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        text = _explain_one(error)
        if text is not None:
            return f"phantom: {text}"
        error = error.__cause__ or error.__context__
    return None


def _explain_one(error: BaseException) -> str | None:
    if isinstance(error, FileNotFoundError) and error.filename is not None:
        program = PurePath(str(error.filename)).name
        if program in _PROGRAMS:
            return (
                f"{program} does not exist on a simulated machine. Remedy: leave it out, or ask torch.cuda "
                f"(get_device_properties, mem_get_info, memory_stats); torch.profiler and `phantom run "
                f"--timeline` record what the simulated GPUs do"
            )
    if isinstance(error, ModuleNotFoundError):
        module = error.name or ""
        top = module.partition(".")[0]
        if top in _MANAGEMENT:
            return (
                f"the module {module!r} asks NVIDIA's driver, which a simulated machine has not. Remedy: ask "
                f"torch.cuda (get_device_properties, mem_get_info, utilization, power_draw)"
            )
        if top in _LIBRARIES:
            return (
                f"the module {module!r} launches kernels past PyTorch, which a simulated GPU cannot run; to "
                f"install it would not help. {REMEDY}"
            )
    if not isinstance(error, (ImportError, OSError)):
        return None
    found = _CUDA_LIBRARY.search(str(error))
    if found is None:
        return None
    if isinstance(error, ImportError):
        what = f"the module {error.name!r}" if error.name else "a module"
        return (
            f"{what} is a compiled CUDA extension (it wants {found.group()}), which a simulated GPU cannot "
            f"run. {REMEDY}"
        )
    return (
        f"the script loads {found.group()} itself, and there is no CUDA behind a simulated GPU. Remedy: use "
        f"torch.cuda and torch.distributed instead (torch.cuda.cudart() answers the usual questions)"
    )


def install() -> None:
    """Adds the explanation to what Python prints for an error that nothing catches."""
    previous = sys.excepthook

    def explain(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        previous(kind, error, trace)
        text = explanation(error)
        if text is not None:
            sys.stderr.write(text + "\n")

    sys.excepthook = explain
