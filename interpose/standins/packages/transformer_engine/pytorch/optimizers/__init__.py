"""Fused optimizers and multi-tensor kernels."""

from typing import Any

from interpose.standins import operators, optimizers
from interpose.standins.surface import missing_names


class FusedAdam(optimizers.FusedAdam):
    """Adam and AdamW in one kernel per data type."""

    library = "transformer_engine.pytorch.optimizers"


class FusedSGD(optimizers.FusedSGD):
    """SGD with momentum in one kernel per data type."""


def multi_tensor_l2norm(chunk_size: int, noop_flag: Any, tensor_lists: Any, per_tensor: bool = False) -> Any:
    """Norm of all tensors, and of each where wanted."""
    return optimizers.l2norm(list(tensor_lists[0]), per_tensor=bool(per_tensor))


def multi_tensor_unscale_l2norm(
    chunk_size: int, noop_flag: Any, tensor_lists: Any, inv_scale: Any, per_tensor: bool = False
) -> Any:
    """Norm of all tensors times a scale."""
    return optimizers.l2norm(list(tensor_lists[0]), per_tensor=bool(per_tensor))


def multi_tensor_scale(chunk_size: int, noop_flag: Any, tensor_lists: Any, scale: float) -> None:
    """tensor_lists[1] = tensor_lists[0] * scale."""
    operators.multi_tensor_scale_kernel(tensor_lists[0], tensor_lists[1])


def multi_tensor_scale_tensor(chunk_size: int, noop_flag: Any, tensor_lists: Any, scale: Any) -> None:
    """Likewise with the scale on the device."""
    operators.multi_tensor_scale_kernel(tensor_lists[0], tensor_lists[1])


def multi_tensor_adam(chunk_size: int, noop_flag: Any, tensor_lists: Any, *args: Any) -> None:
    """Adam on the lists of gradients, parameters, first and second moments, and master copies if any."""
    written = [tensor for tensors in tensor_lists[1:] for tensor in tensors]
    operators.multi_tensor_adam_kernel([*tensor_lists[0], *written], written)


class MultiTensorApply:
    """`multi_tensor_applier(op, noop_flag, tensor_lists, *args)`."""

    def __init__(self, chunk_size: int) -> None:
        self.chunk_size = chunk_size

    def __call__(self, op: Any, noop_flag_buffer: Any, tensor_lists: Any, *args: Any) -> Any:
        return op(self.chunk_size, noop_flag_buffer, tensor_lists, *args)


multi_tensor_applier = MultiTensorApply(2048 * 32)
__getattr__ = missing_names(__name__)
