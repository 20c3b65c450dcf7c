"""What all modules share: tensor parallelism, fp8, weights and their gradients."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from enum import Enum
from typing import Any

import torch

from interpose.standins import fp8 as casts
from interpose.standins import tensor_parallel as tp
from interpose.standins.linear import get_dummy_wgrad
from interpose.standins.surface import missing_names, not_covered

from ..fp8 import FP8GlobalStateManager, get_fp8_torch_dtype

__all__ = ["TransformerEngineBaseModule", "get_dummy_wgrad", "get_workspace", "initialize_ub"]

_workspaces: dict[str, Any] = {}


def get_cublas_workspace_size_bytes() -> int:
    """32 MiB from Hopper on, 4 MiB before it."""
    return 33_554_432 if torch.cuda.get_device_capability()[0] >= 9 else 4_194_304


def get_workspace() -> Any:
    """The workspace of the library's products, made once."""
    if "main" not in _workspaces:
        _workspaces["main"] = torch.empty(get_cublas_workspace_size_bytes(), dtype=torch.uint8, device="cuda")
    return _workspaces["main"]


class UserBufferQuantizationMode(Enum):
    """How products that use user buffers are quantized: named before initialize_ub refuses."""

    NONE = "none"
    FP8 = "fp8"


def initialize_ub(*_: Any, **__: Any) -> None:
    """Userbuffers overlap products with their collectives in kernels of the library: not covered."""
    raise not_covered(
        "transformer_engine.pytorch",
        "initialize_ub",
        why="(user buffers; Megatron: leave out --tp-comm-overlap)",
    )


def destroy_ub() -> None:
    """There are none."""


def _default_init(weight: Any) -> None:
    torch.nn.init.normal_(weight, mean=0.0, std=0.023)


def set_tensor_model_parallel_attributes(tensor: Any, is_parallel: bool, dim: int, stride: int) -> None:
    """The attributes that Megatron reads."""
    for name, value in (
        ("tensor_model_parallel", is_parallel), ("partition_dim", dim), ("partition_stride", stride),
    ):  # fmt: skip
        if not hasattr(tensor, name):
            setattr(tensor, name, value)


class TransformerEngineBaseModule(torch.nn.Module):
    """Base class of the modules with weights."""

    def __init__(self) -> None:
        super().__init__()
        self.name: str | None = None
        self.fp8_initialized = False
        self.fp8 = False
        self.fp8_calibration = False
        self.fp8_meta: dict[str, Any] = {"fp8_checkpoint": False, "fp8_group": None}
        self.fp8_parameters = False
        self.fp8_meta_tensors_initialized = False
        self.tp_group: Any = None
        self.tp_size = 1
        self.sequence_parallel = False
        self.param_init_meta: dict[str, Any] = {}
        self.primary_weights_in_fp8 = False
        self.preserve_high_precision_init_val = False
        self.fsdp_group: Any = None
        self._fp8_workspaces: dict[str, Any] = {}
        self.activation_dtype: torch.dtype | None = None
        self.wgrad_accumulation_and_reduce_hooks: list[Callable[[], None]] = []
        self._delayed: list[Callable[[], Any]] = []
        self.delay_wgrad_compute = False

    def _set_up(
        self, *, tp_group: Any, tp_size: int, sequence_parallel: bool, user_buffers: dict[str, Any],
        symmetric_ar_type: str | None = None,
    ) -> None:  # fmt: skip
        asked = sorted(name for name, value in user_buffers.items() if value)
        if asked:
            raise not_covered(
                "transformer_engine.pytorch", type(self).__name__,
                why=f"({', '.join(asked)}: user buffers; Megatron: leave out --tp-comm-overlap)",
            )  # fmt: skip
        if symmetric_ar_type is not None:
            raise not_covered(
                "transformer_engine.pytorch", type(self).__name__,
                why=f"(symmetric_ar_type={symmetric_ar_type!r}: all_reduce over symmetric memory)",
            )  # fmt: skip
        if tp_group is None:
            self.tp_size = tp_size
        else:
            self.set_tensor_parallel_group(tp_group)
            self.tp_size = tp.size_of(tp_group)
        self.sequence_parallel = bool(sequence_parallel) and self.tp_size > 1

    def set_tensor_parallel_group(self, tp_group: Any) -> None:
        """The group, if it was not known at construction."""
        self.tp_group = tp_group
        self.tp_group_initialized = True

    def set_activation_dtype(self, inp: Any) -> None:
        """The data type of activations: autocast's, else the input's."""
        autocast = torch.is_autocast_enabled("cuda")
        self.activation_dtype = torch.get_autocast_dtype("cuda") if autocast else inp.dtype

    def set_fp8_weights(self) -> None:
        """Nothing: weights are cast when they are used."""

    def init_fp8_metadata(self, num_gemms: int = 1) -> None:
        """Takes over whether fp8 is on."""
        self.fp8 = FP8GlobalStateManager.is_fp8_enabled()
        self.fp8_calibration = FP8GlobalStateManager.is_fp8_calibration()
        self.fp8_meta["fp8_checkpoint"] = self.fp8 or self.fp8_calibration
        if self.fp8:
            self.fp8_initialized = True
            self.fp8_meta["recipe"] = FP8GlobalStateManager.get_fp8_recipe()
            self.fp8_meta["num_gemms"] = num_gemms

    def reset_fp8_meta_tensors(self) -> None:
        """Nothing is kept."""

    def get_extra_state(self) -> Any:
        """What goes into a checkpoint beside the weights: nothing without fp8."""
        return torch.empty(0, dtype=torch.uint8)

    def set_extra_state(self, state: Any) -> None:
        """What get_extra_state returned."""

    def backward_dw(self) -> None:
        """The weight gradients that delay_wgrad_compute put off."""
        delayed, self._delayed = self._delayed, []
        for product in delayed:
            product()
        for hook in self.wgrad_accumulation_and_reduce_hooks if delayed else ():
            hook()

    def need_backward_dw(self) -> bool:
        """Whether weight gradients are put off."""
        return self.delay_wgrad_compute

    def register_wgrad_accumulation_and_reduce_hooks(self, hook: Callable[[], None]) -> None:
        """Called after the weight gradients that were put off."""
        self.wgrad_accumulation_and_reduce_hooks.append(hook)

    def _fill(self, weight: Any, init_method: Any, tracker: Any, tracker_name: str | None) -> None:
        if weight.is_meta:
            return
        init = init_method if init_method is not None else _default_init
        context: Any = nullcontext()
        if tracker is not None and weight.is_cuda:
            context = tracker().fork(tracker_name) if tracker_name is not None else tracker().fork()
        with torch.no_grad(), context:
            init(weight)

    def _precision(self, *, is_first_microbatch: bool | None, gemms: int = 1) -> dict[str, Any]:
        """The fp8 part of a call: recipe, formats, and what happens at the end of backward."""
        self.init_fp8_metadata(gemms)
        if not self.fp8:
            return {}
        manager = FP8GlobalStateManager
        recipe = manager.get_fp8_recipe()
        manager._modules += gemms
        first = manager.is_first_fp8_module()
        group, count = manager.get_fp8_group(), manager

        def end_of_backward() -> None:
            if first and recipe.delayed() and recipe.reduce_amax:
                count.FP8_DISTRIBUTED_GROUP, before = group, count.FP8_DISTRIBUTED_GROUP
                count.reduce_and_update_fp8_tensors(forward=False)
                count.FP8_DISTRIBUTED_GROUP = before

        return {
            "recipe": recipe.kind,
            "forward_dtype": get_fp8_torch_dtype(recipe, True),
            "backward_dtype": get_fp8_torch_dtype(recipe, False),
            "on_backward": end_of_backward,
        }

    def _cast_weight(self, name: str, weight: Any, precision: dict[str, Any], first: bool | None) -> Any:
        """The weight in fp8, kept between micro-batches where the caller says which is the first."""
        if not precision or first is None:
            return None
        if first or name not in self._fp8_workspaces:
            self._fp8_workspaces[name] = casts.quantize(
                weight.detach(), precision["forward_dtype"], recipe=precision["recipe"]
            )
        return self._fp8_workspaces[name]


__getattr__ = missing_names(__name__)
