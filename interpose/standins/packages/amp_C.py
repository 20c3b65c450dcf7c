"""Stand-in of Apex's multi-tensor kernels: `op(chunk_size, noop_flag, tensor_lists, *args)`.

The flag that reports infinities is left as it is: training is numerically healthy.
"""

from typing import Any

from interpose.standins import operators, optimizers
from interpose.standins.surface import missing_names


def multi_tensor_l2norm(chunk_size: int, noop_flag: Any, tensor_lists: Any, per_tensor: bool = False) -> Any:
    """Norm of all tensors, and of each where wanted."""
    return optimizers.l2norm(list(tensor_lists[0]), per_tensor=bool(per_tensor))


def multi_tensor_scale(chunk_size: int, noop_flag: Any, tensor_lists: Any, scale: float) -> None:
    """tensor_lists[1] = tensor_lists[0] * scale."""
    operators.multi_tensor_scale_kernel(tensor_lists[0], tensor_lists[1])


def multi_tensor_axpby(
    chunk_size: int, noop_flag: Any, tensor_lists: Any, a: float, b: float, arg_to_check: int
) -> None:
    """tensor_lists[2] = a * tensor_lists[0] + b * tensor_lists[1]."""
    operators.multi_tensor_axpby_kernel([*tensor_lists[0], *tensor_lists[1]], tensor_lists[2])


def multi_tensor_adam(chunk_size: int, noop_flag: Any, tensor_lists: Any, *args: Any) -> None:
    """Adam on the lists of gradients, parameters, first and second moments, and master copies if any."""
    written = [tensor for tensors in tensor_lists[1:] for tensor in tensors]
    operators.multi_tensor_adam_kernel([*tensor_lists[0], *written], written)


multi_tensor_adam_capturable = multi_tensor_adam
multi_tensor_adam_capturable_master = multi_tensor_adam


def multi_tensor_sgd(chunk_size: int, noop_flag: Any, tensor_lists: Any, *args: Any) -> None:
    """SGD on the lists of gradients, parameters and momentum, and 16-bit copies if any."""
    written = [tensor for tensors in tensor_lists[1:] for tensor in tensors]
    operators.multi_tensor_sgd_kernel([*tensor_lists[0], *written], written)


__getattr__ = missing_names(__name__)
