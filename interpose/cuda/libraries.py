"""The CUDA libraries that Python code asks directly: runtime, NVTX, cuDNN, NCCL, tunable operators."""

from __future__ import annotations

import enum
from types import ModuleType
from typing import Any

from interpose.extension_protocol import Extension

NCCL_VERSION = (2, 27, 5)
CUDNN_VERSION = (9, 10, 2)


class CudaError(enum.IntEnum):
    """The members of `cudaError_t` that torch's Python code names."""

    success = 0
    invalid_value = 1
    memory_allocation = 2
    not_ready = 600


class OutputMode(enum.IntEnum):
    """`cudaOutputMode`."""

    KeyValuePair = 0
    CSV = 1


class RnnMode(enum.IntEnum):
    """`torch._C._cudnn.RNNMode`."""

    rnn_relu = 0
    rnn_tanh = 1
    lstm = 2
    gru = 3


_ERROR_TEXT = {
    0: "no error",
    1: "invalid argument",
    2: "out of memory",
    600: "device not ready",
}


def make_cudart(extension: Extension) -> ModuleType:
    """`torch._C._cudart`, what `torch.cuda.cudart()` returns."""
    module: Any = ModuleType("torch._C._cudart")

    class _Error(int):
        """`cudaError(code)`: an integer that compares with the members below."""

    for member in CudaError:
        setattr(_Error, member.name, _Error(member.value))

    def cudaGetErrorString(error: int) -> str:
        return _ERROR_TEXT.get(int(error), "unrecognized error code")

    def cudaProfilerStart() -> Any:
        return _Error(0)

    def cudaProfilerStop() -> Any:
        return _Error(0)

    def cudaHostRegister(pointer: int, size: int, flags: int) -> Any:
        return _Error(0)

    def cudaHostUnregister(pointer: int) -> Any:
        return _Error(0)

    def cudaStreamCreate(pointer: int) -> Any:
        return _Error(0)

    def cudaStreamDestroy(pointer: int) -> Any:
        return _Error(0)

    def cudaMemGetInfo(device: int) -> tuple[int, int]:
        return extension.mem_get_info(device)

    def cudaDeviceSynchronize() -> Any:
        extension.device_synchronize()
        return _Error(0)

    for name, value in list(locals().items()):
        if name.startswith("cuda"):
            setattr(module, name, value)
    module.cudaError = _Error
    module.cudaOutputMode = OutputMode
    return module


def make_nvtx() -> ModuleType:
    """`torch._C._nvtx`: ranges nest as they should and go nowhere."""
    module: Any = ModuleType("torch._C._nvtx")
    state = {"depth": 0, "next": 0}

    def rangePushA(msg: str) -> int:
        state["depth"] += 1
        return state["depth"] - 1

    def rangePop() -> int:
        state["depth"] -= 1
        return state["depth"]

    def rangeStartA(msg: str) -> int:
        state["next"] += 1
        return state["next"]

    def rangeEnd(range_id: int) -> None:
        return None

    def markA(msg: str) -> None:
        return None

    def deviceRangeStart(msg: str, stream: int) -> object:
        return object()

    def deviceRangeEnd(handle: object, stream: int) -> None:
        return None

    for name, value in list(locals().items()):
        if callable(value):
            setattr(module, name, value)
    return module


def make_cudnn() -> ModuleType:
    """`torch._C._cudnn`."""
    module: Any = ModuleType("torch._C._cudnn")

    def getRuntimeVersion() -> tuple[int, int, int]:
        return CUDNN_VERSION

    def getCompileVersion() -> tuple[int, int, int]:
        return CUDNN_VERSION

    def getVersionInt() -> int:
        major, minor, patch = CUDNN_VERSION
        return major * 10000 + minor * 100 + patch

    module.getRuntimeVersion = getRuntimeVersion
    module.getCompileVersion = getCompileVersion
    module.getVersionInt = getVersionInt
    module.is_cuda = True
    module.is_miopen = False
    module.RNNMode = RnnMode
    return module


def names(extension: Extension) -> dict[str, Any]:
    """Library functions and modules of `torch._C`."""
    state: dict[str, Any] = {"benchmark_limit": 10, "empty_cache": True}

    def _nccl_all_reduce(*_: Any) -> None:
        """torch.cuda.nccl.is_available looks for it; calls are refused by frameworks/cuda_extensions.py."""
        raise RuntimeError("phantom does not simulate torch.cuda.nccl (NCCL by hand): use torch.distributed")

    def _nccl_version() -> int:
        major, minor, patch = NCCL_VERSION
        return major << 32 | minor << 16 | patch

    def _nccl_version_suffix() -> bytes:
        return b""

    def _cuda_get_cudnn_benchmark_limit() -> int:
        return state["benchmark_limit"]

    def _cuda_set_cudnn_benchmark_limit(limit: int) -> None:
        state["benchmark_limit"] = limit

    def _cuda_get_conv_benchmark_empty_cache() -> bool:
        return state["empty_cache"]

    def _cudnn_set_conv_benchmark_empty_cache(enable: bool) -> None:
        state["empty_cache"] = enable

    def _cuda_tunableop_enable(value: bool) -> None:
        return None

    def _cuda_tunableop_is_enabled() -> bool:
        return False

    def _cuda_tunableop_tuning_enable(value: bool) -> None:
        return None

    def _cuda_tunableop_tuning_is_enabled() -> bool:
        return False

    def _cuda_record_untuned_enable(value: bool) -> None:
        return None

    def _cuda_record_untuned_is_enabled() -> bool:
        return False

    def _cuda_tunableop_get_results() -> tuple[()]:
        return ()

    def _cuda_tunableop_get_validators() -> tuple[()]:
        return ()

    def _cuda_tunableop_get_filename() -> str:
        return ""

    def _cuda_tunableop_set_filename(filename: str, insert_device_ordinal: bool = False) -> None:
        return None

    def _cuda_tunableop_read_file(filename: str | None = None) -> bool:
        return False

    def _cuda_tunableop_get_max_tuning_duration() -> int:
        return 30

    def _cuda_tunableop_set_max_tuning_duration(duration: int) -> None:
        return None

    def _cuda_tunableop_get_max_tuning_iterations() -> int:
        return 100

    def _cuda_tunableop_set_max_tuning_iterations(iterations: int) -> None:
        return None

    def _cuda_tunableop_get_rotating_buffer_size() -> int:
        return 0

    def _cuda_tunableop_set_rotating_buffer_size(buffer_size: int) -> None:
        return None

    def _cuda_tunableop_set_numerical_check_tolerances(
        enable: bool, atol: float = 1e-5, rtol: float = 1e-5
    ) -> None:
        return None

    def _cuda_jiterator_compile_and_launch_kernel(*arguments: Any) -> Any:
        raise RuntimeError("phantom does not simulate jiterator kernels")

    found = {k: v for k, v in locals().items() if k.startswith(("_cuda_", "_nccl", "_cudnn"))}
    found["_cudart"] = make_cudart(extension)
    found["_nvtx"] = make_nvtx()
    found["_cudnn"] = make_cudnn()
    return found
