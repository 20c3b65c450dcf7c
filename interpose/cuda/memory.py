"""The caching allocator as `torch.cuda.memory` sees it."""

from __future__ import annotations

from typing import Any

from interpose.extension_protocol import Extension

HISTORY_LIMIT = 2**63 - 1


def _mem_pool_class(extension: Extension) -> type:
    class _MemPool:
        """A pool of segments of its own (`torch.cuda.MemPool`)."""

        def __init__(
            self,
            allocator: Any = None,
            is_user_created: bool = True,
            use_on_oom: bool = False,
            no_split: bool = False,
        ) -> None:
            if allocator is not None:
                raise RuntimeError(
                    "phantom does not simulate custom CUDA allocators (MemPool(allocator=...))"
                )
            self._device = extension.current_device()
            self._id = extension.new_pool_id(is_user_created)
            extension.ensure_pool(self._device, self._id)

        @property
        def id(self) -> tuple[int, int]:
            return self._id

        @property
        def allocator(self) -> None:
            return None

        @property
        def device(self) -> int:
            return self._device

        def use_count(self) -> int:
            return extension.pool_users(self._device, self._id)

        def __del__(self) -> None:
            # Absent when __init__ raised; None while the interpreter goes down.
            if getattr(self, "_id", None) is not None and extension.release_pool is not None:
                extension.release_pool(self._device, self._id)
                extension.empty_cache(self._id)

    _MemPool.__module__ = "torch._C"
    _MemPool.__qualname__ = "_MemPool"
    return _MemPool


def _snapshot(extension: Extension, which: Any) -> dict[str, Any]:
    """`which`: None for everything, or (pool id, pool id[, include_traces])."""
    shot = extension.memory_snapshot()
    if which is not None:
        pool, include_traces = tuple(which[:2]), which[2] if len(which) > 2 else True
        if pool != (0, 0):
            shot["segments"] = [s for s in shot["segments"] if s["segment_pool_id"] == pool]
        if not include_traces:
            shot["device_traces"] = [[] for _ in shot["device_traces"]]
    return shot


def names(extension: Extension) -> dict[str, Any]:
    """Memory functions and classes of `torch._C`."""
    state: dict[str, Any] = {"enabled": True, "history": False, "metadata": ""}

    def _cuda_memoryStats(device: int) -> dict[str, Any]:
        return extension.memory_stats(device)

    def _cuda_resetAccumulatedMemoryStats(device: int) -> None:
        extension.reset_accumulated_memory_stats(device)

    def _cuda_resetPeakMemoryStats(device: int) -> None:
        extension.reset_peak_memory_stats(device)

    def _cuda_hostMemoryStats() -> dict[str, Any]:
        return extension.pinned_stats()

    def _cuda_resetAccumulatedHostMemoryStats() -> None:
        extension.reset_pinned_stats(False, True)

    def _cuda_resetPeakHostMemoryStats() -> None:
        extension.reset_pinned_stats(True, False)

    def _cuda_memorySnapshot(mempool_id: Any = None) -> dict[str, Any]:
        return _snapshot(extension, mempool_id)

    def _cuda_emptyCache() -> None:
        extension.empty_cache()

    def _cuda_setMemoryFraction(fraction: float, device: int) -> None:
        extension.set_memory_fraction(fraction, device)

    def _cuda_getMemoryFraction(device: int) -> float:
        return extension.memory_fraction(device)

    def _cuda_attach_out_of_memory_observer(observer: Any) -> None:
        extension.attach_oom_observer(observer)

    def _cuda_cudaHostAllocator() -> int:
        return 0

    def _cuda_cudaCachingAllocator_raw_alloc(size: int, stream: int) -> int:
        return extension.raw_alloc(size, stream)

    def _cuda_cudaCachingAllocator_raw_delete(mem_ptr: int) -> None:
        extension.raw_delete(mem_ptr)

    def _cuda_cudaCachingAllocator_enable(value: bool) -> None:
        state["enabled"] = bool(value)

    def _cuda_cudaCachingAllocator_is_enabled() -> bool:
        return state["enabled"]

    def _cuda_cudaCachingAllocator_set_allocator_settings(env: str) -> None:
        import torch

        torch._C._accelerator_setAllocatorSettings(env)  # type: ignore[attr-defined]

    def _cuda_getAllocatorBackend() -> str:
        return "native"

    def _cuda_getAllocator() -> None:
        raise RuntimeError("phantom does not simulate custom CUDA allocators")

    def _cuda_customAllocator(alloc_fn: int, free_fn: int) -> None:
        raise RuntimeError("phantom does not simulate custom CUDA allocators (CUDAPluggableAllocator)")

    def _cuda_changeCurrentAllocator(allocator: Any) -> None:
        raise RuntimeError("phantom does not simulate custom CUDA allocators (change_current_allocator)")

    def _cuda_record_memory_history(
        enabled: str | None = "all",
        context: str | None = "all",
        stacks: str = "all",
        max_entries: int = HISTORY_LIMIT,
        clear_history: bool = False,
        compile_context: bool = False,
        global_record_annotations: bool = False,
        *ignored: Any,
    ) -> None:
        state["history"] = enabled is not None
        extension.keep_memory_history(state["history"], max_entries)

    def _cuda_record_memory_history_legacy(
        enabled: bool,
        record_context: bool = True,
        trace_alloc_max_entries: int = 1,
        trace_alloc_record_context: bool = False,
        *ignored: Any,
    ) -> None:
        state["history"] = bool(enabled)
        extension.keep_memory_history(state["history"], trace_alloc_max_entries)

    def _cuda_isHistoryEnabled() -> bool:
        return state["history"]

    def _cuda_allocationTraceback(data_ptr: int) -> list[Any]:
        return []

    def _cuda_setMemoryMetadata(metadata: str) -> None:
        state["metadata"] = metadata

    def _cuda_getMemoryMetadata() -> str:
        return state["metadata"]

    def _cuda_memoryMetadataSupported() -> bool:
        return False

    def _cuda_annotateMemory(data_ptr: int, metadata: str) -> None:
        return None

    def _cuda_getCheckpointState(device: int, pool: tuple[int, int]) -> Any:
        return extension.pool_checkpoint(device, pool)

    def _cuda_setCheckpointPoolState(
        device: int, state: Any, stale_storages: list[int], storages_to_add_deleters_to: list[int]
    ) -> None:
        extension.set_pool_checkpoint(state, storages_to_add_deleters_to)

    def _cuda_checkPoolLiveAllocations(device: int, pool: tuple[int, int], expected: set[int]) -> bool:
        return extension.pool_holds_only(device, pool, expected)

    def _cuda_beginAllocateToPool(device: int, mempool_id: tuple[int, int]) -> None:
        extension.begin_allocate_to_pool(device, mempool_id)

    def _cuda_beginAllocateCurrentThreadToPool(device: int, mempool_id: tuple[int, int]) -> None:
        extension.begin_allocate_thread_to_pool(device, mempool_id)

    def _cuda_beginAllocateCurrentStreamToPool(device: int, mempool_id: tuple[int, int]) -> None:
        extension.begin_allocate_stream_to_pool(device, mempool_id)

    def _cuda_endAllocateToPool(device: int, mempool_id: tuple[int, int]) -> None:
        extension.end_allocate_to_pool(device, mempool_id)

    def _cuda_releasePool(device: int, mempool_id: tuple[int, int]) -> None:
        extension.release_pool(device, mempool_id)

    def _cuda_clearCublasWorkspaces() -> None:
        extension.clear_cublas_workspaces()

    def _cuda_getCublasWorkspaceSize() -> int:
        return extension.cublas_workspace_bytes()

    def _cuda_setCublasWorkspaceSize(size: int) -> None:
        extension.set_cublas_workspace_bytes(size)

    def _cuda_resetCublasWorkspaceSize() -> None:
        extension.set_cublas_workspace_bytes(0)

    def _cuda_getCublasLtWorkspaceSize() -> int:
        return extension.cublas_workspace_bytes()

    def _cuda_setCublasLtWorkspaceSize(size: int) -> None:
        return None  # one workspace serves both libraries

    def _cuda_resetCublasLtWorkspaceSize() -> None:
        return None

    def _host_emptyCache() -> None:
        return None  # pinned blocks are not cached

    found = {name: value for name, value in locals().items() if name.startswith(("_cuda_", "_host_"))}
    found["_MemPool"] = _mem_pool_class(extension)
    return found
