"""Applies a multi-tensor kernel of `amp_C` to lists of tensors."""

from typing import Any

from interpose.standins.surface import missing_names


class MultiTensorApply:
    """`multi_tensor_applier(op, noop_flag, tensor_lists, *args)`."""

    available = True
    warned = False

    def __init__(self, chunk_size: int) -> None:
        self.chunk_size = chunk_size

    def check_avail(self) -> None:
        """Nothing is missing here."""

    def __call__(self, op: Any, noop_flag_buffer: Any, tensor_lists: Any, *args: Any) -> Any:
        return op(self.chunk_size, noop_flag_buffer, tensor_lists, *args)


multi_tensor_applier = MultiTensorApply(2048 * 32)
__getattr__ = missing_names(__name__)
