"""Devices: how many, which is current, what they are."""

from __future__ import annotations

import os
import sys
import uuid
from dataclasses import dataclass, field
from typing import Any

from interpose.extension_protocol import Extension
from phantom.wire import compute_capability

CUDA_VERSION = "12.8"
COMPILED_VERSION = 12080
# Cycles of torch.cuda._sleep; the boost clock of an H100 SXM.
CLOCK_HZ = 1.98e9
# Architectures of PyTorch's CUDA 12.8 wheels.
ARCH_FLAGS = "sm_75 sm_80 sm_86 sm_90 sm_100 sm_120"


class DeviceUuid:
    """What `torch.cuda.get_device_properties(i).uuid` gives: equal in every run, different by GPU."""

    def __init__(self, index: int) -> None:
        node = os.environ.get("PHANTOM_NODE", os.environ.get("GROUP_RANK", "0"))
        self._uuid = uuid.uuid5(uuid.NAMESPACE_OID, f"phantom/{node}/{index}")

    @property
    def bytes(self) -> bytes:
        """The 16 bytes."""
        return self._uuid.bytes

    def __str__(self) -> str:
        return str(self._uuid)


@dataclass(frozen=True)
class CudaDeviceProperties:
    """Counterpart of `torch._C._CudaDeviceProperties`; sizes in bytes.

    Per-architecture limits are those of the CUDA C Programming Guide, "Compute Capabilities".
    """

    name: str
    major: int
    minor: int
    total_memory: int
    multi_processor_count: int
    L2_cache_size: int
    uuid: DeviceUuid
    pci_bus_id: int
    warp_size: int = 32
    is_integrated: int = 0
    is_multi_gpu_board: int = 0
    max_threads_per_multi_processor: int = 2048
    max_threads_per_block: int = 1024
    regs_per_multiprocessor: int = 65536
    shared_memory_per_block: int = 49152
    shared_memory_per_block_optin: int = 232448
    shared_memory_per_multiprocessor: int = 233472
    clock_rate: int = 1980000
    memory_clock_rate: int = 2619000
    memory_bus_width: int = 5120
    pci_device_id: int = 0
    pci_domain_id: int = 0
    gcnArchName: str = field(default="", repr=False)

    def __repr__(self) -> str:
        return (
            f"_CudaDeviceProperties(name='{self.name}', major={self.major}, minor={self.minor}, "
            f"total_memory={self.total_memory >> 20}MB, multi_processor_count={self.multi_processor_count}, "
            f"uuid={self.uuid}, pci_bus_id={self.pci_bus_id}, pci_device_id={self.pci_device_id}, "
            f"pci_domain_id={self.pci_domain_id}, L2_cache_size={self.L2_cache_size >> 20}MB)"
        )


CudaDeviceProperties.__name__ = CudaDeviceProperties.__qualname__ = "_CudaDeviceProperties"


def make_properties(device: dict[str, Any], index: int) -> CudaDeviceProperties:
    """Properties of GPU `index` of a node of equal GPUs, from the extension's `device_properties()`."""
    capability = (device["major"], device["minor"])
    shared_bytes = compute_capability.shared_memory_bytes(capability)
    return CudaDeviceProperties(
        **device,
        uuid=DeviceUuid(index),
        pci_bus_id=0x18 + 8 * index,
        max_threads_per_multi_processor=compute_capability.max_threads(capability),
        shared_memory_per_block_optin=shared_bytes - compute_capability.system_shared_bytes(capability),
        shared_memory_per_multiprocessor=shared_bytes,
    )


def visible_devices(count: int) -> int:
    """How many of `count` devices CUDA_VISIBLE_DEVICES leaves: its list ends at the first bad entry."""
    listed = os.environ.get("CUDA_VISIBLE_DEVICES")
    if listed is None:
        return count
    seen: list[str] = []
    for raw in listed.split(","):
        entry = raw.strip()
        good = (entry.isdigit() and int(entry) < count) or entry.startswith(("GPU-", "MIG-"))
        if not good or entry in seen:
            break
        seen.append(entry)
    return min(len(seen), count)


def names(extension: Extension) -> dict[str, Any]:
    """Device functions of `torch._C`."""
    state: dict[str, Any] = {"initialized": False, "bad_fork": False, "sync_debug_mode": 0}

    def after_fork() -> None:
        state["bad_fork"] = state["initialized"]

    os.register_at_fork(after_in_child=after_fork)

    def _get_device_properties(device: int) -> CudaDeviceProperties:
        return make_properties(extension.device_properties(), device)

    def _cuda_getDeviceCount() -> int:
        return visible_devices(extension.device_count())

    def _cuda_init() -> None:
        count = _cuda_getDeviceCount()
        if count == 0:
            raise RuntimeError("No CUDA GPUs are available")
        state["initialized"] = True
        cuda = sys.modules["torch.cuda"]
        cuda.default_generators = tuple(extension.default_generator(i) for i in range(count))  # type: ignore[attr-defined]
        cuda._get_device_properties = _get_device_properties  # type: ignore[attr-defined]
        extension.ensure_session()

    def _cuda_getDevice() -> int:
        return extension.current_device()

    def _cuda_setDevice(device: int) -> None:
        extension.set_current_device(device)

    def _cuda_exchangeDevice(device: int) -> int:
        return extension.exchange_device(device)

    def _cuda_maybeExchangeDevice(device: int) -> int:
        return extension.exchange_device(device)

    def _cuda_isInBadFork() -> bool:
        return state["bad_fork"]

    def _cuda_canDeviceAccessPeer(device: int, peer_device: int) -> bool:
        return device != peer_device

    def _cuda_getCompiledVersion() -> int:
        return COMPILED_VERSION

    def _cuda_getArchFlags() -> str:
        return ARCH_FLAGS

    def _cuda_hasPrimaryContext(device: int) -> bool:
        if not 0 <= device < extension.device_count():
            raise RuntimeError(
                f"hasPrimaryContext expects a valid device index, but got device_index={device}"
            )
        return state["initialized"]

    def _cuda_synchronize() -> None:
        extension.device_synchronize()

    def _cuda_ipc_collect() -> None:
        return None

    def _cuda_sleep(cycles: int) -> None:
        extension.device_sleep(round(cycles * 1e12 / CLOCK_HZ))

    def _cuda_busy_wait_for_flag() -> None:
        return None

    def _cuda_clear_flag() -> None:
        return None

    def _cuda_lock_mutex() -> None:
        return None

    def _cuda_unlock_mutex() -> None:
        return None

    def _cuda_set_sync_debug_mode(debug_mode: int) -> None:
        state["sync_debug_mode"] = debug_mode

    def _cuda_get_sync_debug_mode() -> int:
        return state["sync_debug_mode"]

    def _cuda_getCurrentBlasHandle() -> int:
        return 0x7B0000000000 + extension.current_device()

    def _cuda_getCurrentSolverHandle() -> int:
        return 0x7C0000000000 + extension.current_device()

    found = {name: value for name, value in locals().items() if name.startswith(("_cuda_", "_get_device"))}
    found["_CudaDeviceProperties"] = CudaDeviceProperties
    return found
