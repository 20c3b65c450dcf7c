"""The driver that Triton finds for NVIDIA GPUs: the simulated one.

Triton's registry of backends (`triton.backends.backends`) is where drivers come from; this one takes the
place of CudaDriver there, so that nothing of Triton itself is changed. The compiler of that backend stays.
"""

from __future__ import annotations

import itertools
from typing import Any

from interpose.extension_protocol import Extension
from interpose.triton.benchmark import time_off_clock_ms
from interpose.triton.launcher import Launcher


class Utilities:
    """Counterpart of CudaUtils: what Triton asks the CUDA driver through its C module."""

    def __init__(self, extension: Extension) -> None:
        self._extension = extension
        self._handles = itertools.count(1)

    def load_binary(
        self, name: str, binary: bytes, shared_bytes: int, device: int
    ) -> tuple[int, int, int, int, int]:
        """Module, function, registers, spilled registers, largest block. Raises UnreadableCubin."""
        from interpose.triton.cubin import read_resources

        resources = read_resources(binary, name)
        handle = next(self._handles)
        return handle, handle, resources.registers, resources.stack_bytes // 4, resources.largest_block

    def unload_module(self, module: int) -> None:
        """Nothing is held for a loaded module."""

    def get_device_properties(self, device: int) -> dict[str, int]:
        """The properties that Triton reads (driver.c, getDeviceProperties)."""
        import torch

        properties: Any = torch.cuda.get_device_properties(device)
        return {
            "max_shared_mem": properties.shared_memory_per_block_optin,
            "max_num_regs": properties.regs_per_multiprocessor,
            "multiprocessor_count": properties.multi_processor_count,
            "warpSize": properties.warp_size,
            "sm_clock_rate": properties.clock_rate,
            "mem_clock_rate": properties.memory_clock_rate,
            "mem_bus_width": properties.memory_bus_width,
        }

    def get_device_capability(self, device: int) -> tuple[int, int]:
        """Compute capability of the simulated GPU."""
        import torch

        return torch.cuda.get_device_capability(device)

    def is_stream_capturing(self, stream: int) -> bool:
        """Whether a CUDA graph is being captured."""
        return bool(self._extension.stream_capturing())

    def set_printf_fifo_size(self, size: int) -> None:
        """Kernels print nothing: they do not run."""

    def cuOccupancyMaxActiveClusters(self, *arguments: Any) -> int:
        """Clusters that fit at once; one per eight multiprocessors, about what an H100 has."""
        import torch

        return max(1, torch.cuda.get_device_properties(0).multi_processor_count // 8)

    def fill_tma_descriptor_tiled(self, *arguments: Any) -> object:
        """A descriptor for the tensor memory accelerator; the launcher reads the tensor itself."""
        return object()

    fill_tma_descriptor_im2col = fill_tma_descriptor_tiled
    fill_tma_descriptor = fill_tma_descriptor_tiled


def driver_class(extension: Extension, base: type) -> type:
    """The class to register in place of `base` (triton.backends.nvidia.driver.CudaDriver)."""
    from triton.backends.driver import GPUDriver

    class PhantomDriver(base):  # type: ignore[misc, valid-type]
        """CudaDriver without the C module that links libcuda."""

        def __init__(self) -> None:
            self.utils = Utilities(extension)
            self.launcher_cls = self._make_launcher
            GPUDriver.__init__(self)

        @staticmethod
        def is_active() -> bool:
            """Whether there is a GPU: the simulated one, or none where CUDA_VISIBLE_DEVICES hides all."""
            import torch

            return torch.cuda.is_available()

        def _make_launcher(self, source: Any, metadata: Any) -> Launcher:
            return Launcher(extension, source, metadata)

        def get_benchmarker(self) -> Any:
            """What @triton.autotune times candidates with (triton.testing.do_bench's signature)."""

            def benchmark(call: Any, *, quantiles: Any = None, **_: Any) -> Any:
                time_ms = time_off_clock_ms(extension, call)
                return [time_ms] * len(quantiles) if quantiles is not None else time_ms

            return benchmark

    PhantomDriver.__qualname__ = PhantomDriver.__name__ = "CudaDriver"
    return PhantomDriver
