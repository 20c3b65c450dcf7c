"""CUDA graphs: kernels of a captured region are kept and replayed at the cost of one launch."""

from __future__ import annotations

from typing import Any

from interpose.extension_protocol import Extension


def _graph_class(extension: Extension) -> type:
    class _CUDAGraph:
        """Counterpart of the C class of the same name in CUDA builds."""

        _graph = 0
        _device = 0
        _pool: tuple[int, int] | None = None

        def __new__(cls, keep_graph: bool = False) -> Any:
            return super().__new__(cls)

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            pass

        def capture_begin(
            self, pool: tuple[int, int] | None = None, capture_error_mode: str = "global"
        ) -> None:
            if capture_error_mode not in ("global", "thread_local", "relaxed"):
                raise RuntimeError(
                    "Unknown capture error mode. Expected `global`, `thread_local`, or `relaxed`, "
                    f"got {capture_error_mode}"
                )
            if self._graph:
                raise RuntimeError(
                    "This CUDAGraph instance already owns a captured graph. "
                    "To capture a new graph, create a new instance."
                )
            self._device = extension.current_device()
            self._pool = pool if pool is not None else extension.new_pool_id(False)
            extension.begin_allocate_thread_to_pool(self._device, self._pool)
            extension.capture_begin()

        def capture_end(self) -> None:
            self._graph = extension.capture_end()
            extension.end_allocate_to_pool(self._device, self._pool)

        # torch 2.14 ends a capture in two steps.
        def capture_end_pre(self) -> None:
            self._graph = extension.capture_end()
            extension.end_allocate_to_pool(self._device, self._pool)

        def capture_end_post(self) -> None:
            return None

        def instantiate(self) -> None:
            return None

        def register_generator_state(self, generator: Any) -> None:
            return None

        def replay(self) -> None:
            if not self._graph:
                raise RuntimeError("Called CUDAGraph::replay without a preceding successful capture.")
            extension.capture_replay(self._graph)

        def reset(self) -> None:
            if not self._graph:
                return
            extension.capture_drop(self._graph)
            extension.release_pool(self._device, self._pool)
            self._graph = 0

        def pool(self) -> tuple[int, int]:
            if self._pool is None:
                raise RuntimeError("Called CUDAGraph::pool() without a preceding successful capture.")
            return self._pool

        @property
        def _has_graph_exec(self) -> bool:
            return bool(self._graph)

        def pools(self) -> list[tuple[int, int]]:
            return [self.pool()]

        def _retain_pool(self, pool_id: tuple[int, int]) -> None:
            extension.ensure_pool(self._device, pool_id)

        def enable_debug_mode(self) -> None:
            return None

        def debug_dump(self, debug_path: str) -> None:
            raise RuntimeError("phantom does not write dumps of CUDA graphs")

        def raw_cuda_graph(self) -> int:
            raise RuntimeError("phantom has no cudaGraph_t behind a CUDAGraph")

        def raw_cuda_graph_exec(self) -> int:
            raise RuntimeError("phantom has no cudaGraphExec_t behind a CUDAGraph")

    _CUDAGraph.__module__ = "torch._C"
    _CUDAGraph.__qualname__ = "_CUDAGraph"
    return _CUDAGraph


def _graph_tree_names(extension: Extension) -> dict[str, Any]:
    """What torch/_inductor/cudagraph_trees.py takes from CUDA builds."""

    def _construct_CUDA_Tensor_From_Storage_And_Metadata(metadata: dict[str, Any], storage: Any) -> Any:
        return extension.construct_cuda_tensor(metadata, storage)

    def _storage_Use_Count(storage_ptr: int) -> int:
        return extension.storage_use_count(storage_ptr)

    def _tensors_data_ptrs_at_indices_equal(
        tensors: list[Any], data_ptrs: list[int | None], indices: list[int]
    ) -> bool:
        return extension.tensors_data_ptrs_at_indices_equal(tensors, data_ptrs, indices)

    def _free_And_Remove_DeleterFn(storage_ptr: int) -> None:
        extension.free_and_remove_deleter(storage_ptr)

    def _has_Standard_Deleter(storage_ptr: int) -> bool:
        return extension.has_standard_deleter(storage_ptr)

    def _set_storage_access_error_msg(tensor: Any, text: str) -> None:
        extension.set_storage_access_error(tensor, text)

    def _set_storage_data_ptr_access_error_msg(storage_ptr: int, text: str) -> None:
        extension.set_storage_data_ptr_access_error(storage_ptr, text)

    found = {name: value for name, value in locals().items() if name.startswith("_")}
    found["_cuda_CUDAAllocator_AllocatorState"] = extension.PoolCheckpoint
    return found


def names(extension: Extension) -> dict[str, Any]:
    """Graph functions and classes of `torch._C`."""

    def _graph_pool_handle() -> tuple[int, int]:
        return extension.new_pool_id(True)

    return {
        "_graph_pool_handle": _graph_pool_handle,
        "_CUDAGraph": _graph_class(extension),
        **_graph_tree_names(extension),
    }
