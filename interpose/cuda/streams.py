"""Streams and events: bases of `torch.cuda.Stream` and `torch.cuda.Event` over torch's generic classes."""

from __future__ import annotations

import sys
from typing import Any

from interpose.extension_protocol import Extension

CUDA = 1  # c10::DeviceType::CUDA


def _classes(extension: Extension) -> dict[str, type]:
    torch_c = sys.modules["torch._C"]
    generic_stream: Any = torch_c.Stream
    generic_event: Any = torch_c.Event

    class _CudaStreamBase(generic_stream):
        """Counterpart of the C class of the same name in CUDA builds."""

        def __new__(
            cls,
            priority: int = 0,
            stream_id: int = 0,
            device_index: int = 0,
            device_type: int = 0,
            stream_ptr: int = 0,
        ) -> Any:
            if stream_id or device_index or device_type:
                index, stream = device_index, stream_id
            else:
                index = extension.current_device()
                if stream_ptr:
                    stream = extension.stream_of_handle(index, stream_ptr)
                else:
                    stream = extension.stream_from_pool(index, priority)
            return generic_stream.__new__(cls, stream_id=stream, device_index=index, device_type=CUDA)

        # torch.Stream's own __init__ would be handed the arguments of __new__.
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            pass

        @property
        def cuda_stream(self) -> int:
            return extension.stream_handle(self.device_index, self.stream_id)

        @property
        def priority(self) -> int:
            return extension.stream_priority(self.stream_id)

        @staticmethod
        def priority_range() -> tuple[int, int]:
            return 0, extension.greatest_priority()

        def query(self) -> bool:
            return extension.stream_query(self.device_index, self.stream_id)

        def synchronize(self) -> None:
            extension.stream_synchronize(self.device_index, self.stream_id)

        def __eq__(self, other: object) -> bool:
            return (
                isinstance(other, generic_stream)
                and self.stream_id == other.stream_id
                and self.device_index == other.device_index
            )

        def __hash__(self) -> int:
            return hash((self.stream_id, self.device_index))

    class _CudaEventBase(generic_event):
        """Counterpart of the C class of the same name in CUDA builds; times are virtual."""

        def __new__(
            cls,
            enable_timing: bool = False,
            blocking: bool = False,
            interprocess: bool = False,
            external: bool = False,
        ) -> Any:
            return generic_event.__new__(
                cls, device="cuda", enable_timing=enable_timing, blocking=blocking, interprocess=interprocess
            )

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            pass

        @classmethod
        def from_ipc_handle(cls, device: Any, handle: bytes) -> Any:
            raise RuntimeError(
                "phantom does not simulate CUDA events shared between processes (from_ipc_handle)"
            )

        def ipc_handle(self) -> bytes:
            raise RuntimeError("phantom does not simulate CUDA events shared between processes (ipc_handle)")

        @property
        def cuda_event(self) -> int:
            return self.event_id

        def elapsed_time(self, end_event: Any) -> float:
            return extension.event_elapsed_ms(self, end_event)

    for made in (_CudaStreamBase, _CudaEventBase):
        made.__module__ = "torch._C"
        made.__qualname__ = made.__name__
    return {"_CudaStreamBase": _CudaStreamBase, "_CudaEventBase": _CudaEventBase}


def names(extension: Extension) -> dict[str, Any]:
    """Stream functions and classes of `torch._C`."""

    def _cuda_getCurrentStream(device: int) -> tuple[int, int, int]:
        return extension.current_stream_id(device), device, CUDA

    def _cuda_getCurrentRawStream(device: int) -> int:
        return extension.current_stream_handle(device)

    def _cuda_getDefaultStream(device: int) -> tuple[int, int, int]:
        return 0, device, CUDA

    def _cuda_getStreamFromExternal(data_ptr: int, device: int) -> tuple[int, int, int]:
        return extension.stream_of_handle(device, data_ptr), device, CUDA

    def _cuda_setStream(stream_id: int, device_index: int, device_type: int) -> None:
        # Selecting a stream selects its device too (THCPModule_setStream_wrap).
        extension.set_current_device(device_index)
        extension.set_current_stream(device_index, stream_id)

    def _cuda_isCurrentStreamCapturing() -> bool:
        return extension.stream_capturing()

    found: dict[str, Any] = {name: value for name, value in locals().items() if name.startswith("_cuda_")}
    found.update(_classes(extension))
    return found
