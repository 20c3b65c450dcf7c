"""The fp8 state of the process, and the context that switches it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from interpose.standins import operators
from interpose.standins import tensor_parallel as tp
from interpose.standins.surface import missing_names, not_covered

from ..common.recipe import DelayedScaling, Float8CurrentScaling, Format, MXFP8BlockScaling, Recipe

_COVERED = ("delayed", "current", "mxfp8", "block")


def check_fp8_support() -> tuple[bool, str]:
    """Whether the simulated GPU has fp8 units."""
    able = torch.cuda.get_device_capability() >= (8, 9)
    return able, "" if able else "Device compute capability 8.9 or higher required for FP8 execution."


def check_mxfp8_support() -> tuple[bool, str]:
    """Whether the simulated GPU has block-scaled fp8 units."""
    able = torch.cuda.get_device_capability() >= (10, 0)
    return able, "" if able else "Device compute capability 10.0 or higher required for MXFP8 execution."


def get_default_fp8_recipe() -> Recipe:
    """Block scaling on Blackwell, delayed scaling before it."""
    return MXFP8BlockScaling() if check_mxfp8_support()[0] else DelayedScaling()


def get_fp8_torch_dtype(fp8_recipe: Any, fprop_tensor: bool = True) -> torch.dtype:
    """The format of forward or backward tensors."""
    hybrid = fp8_recipe.fp8_format in (Format.HYBRID,)
    if fp8_recipe.fp8_format == Format.E4M3 or (hybrid and fprop_tensor):
        return torch.float8_e4m3fn
    return torch.float8_e5m2


class FP8GlobalStateManager:
    """Which recipe is in force, and the maxima that delayed scaling reduces over the group."""

    FP8_ENABLED = False
    FP8_CALIBRATION = False
    FP8_RECIPE: Any = None
    FP8_DISTRIBUTED_GROUP: Any = None
    FP8_PARAMETERS = False
    HIGH_PRECISION_INIT_VAL = False
    IS_FIRST_FP8_MODULE = False
    FP8_GRAPH_CAPTURING = False
    AUTOCAST_DEPTH = 0
    skip_fp8_weight_update_tensor: Any = None
    quantization_tensors_updated = False
    _modules: int = 0
    """fp8 modules that ran in the current context."""

    @classmethod
    def reset(cls) -> None:
        """Back to the start."""
        cls.FP8_ENABLED = cls.FP8_CALIBRATION = cls.FP8_PARAMETERS = cls.IS_FIRST_FP8_MODULE = False
        cls.FP8_RECIPE = cls.FP8_DISTRIBUTED_GROUP = None
        cls.AUTOCAST_DEPTH = cls._modules = 0

    @classmethod
    def is_fp8_available(cls) -> tuple[bool, str]:
        """Whether the simulated GPU has fp8 units."""
        return check_fp8_support()

    @classmethod
    def is_fp8_enabled(cls) -> bool:
        """Whether products run in fp8."""
        return cls.FP8_ENABLED

    @classmethod
    def is_fp8_calibration(cls) -> bool:
        """Whether maxima are recorded only."""
        return cls.FP8_CALIBRATION

    @classmethod
    def with_fp8_parameters(cls) -> bool:
        """Whether parameters are kept in fp8."""
        return cls.FP8_PARAMETERS

    @classmethod
    def with_high_precision_init_val(cls) -> bool:
        """Whether initial values are kept beside fp8 parameters."""
        return cls.HIGH_PRECISION_INIT_VAL

    @classmethod
    def fp8_graph_capturing(cls) -> bool:
        """Whether a CUDA graph is being captured."""
        return cls.FP8_GRAPH_CAPTURING

    @classmethod
    def is_first_fp8_module(cls) -> bool:
        """True once per context."""
        first, cls.IS_FIRST_FP8_MODULE = cls.IS_FIRST_FP8_MODULE, False
        return first

    @classmethod
    def get_fp8_recipe(cls) -> Any:
        """The recipe in force."""
        return cls.FP8_RECIPE if cls.FP8_RECIPE is not None else get_default_fp8_recipe()

    @classmethod
    def get_fp8_group(cls) -> Any:
        """The group that maxima are reduced over."""
        return cls.FP8_DISTRIBUTED_GROUP

    @classmethod
    def get_fp8_autocast_state(cls) -> tuple[Any, ...]:
        """All of it, to be set again."""
        return (cls.FP8_ENABLED, cls.FP8_CALIBRATION, cls.FP8_RECIPE, cls.FP8_DISTRIBUTED_GROUP,
                cls.IS_FIRST_FP8_MODULE, cls.FP8_GRAPH_CAPTURING)  # fmt: skip

    get_autocast_state = get_fp8_autocast_state

    @classmethod
    def set_fp8_autocast_state(cls, state: tuple[Any, ...]) -> None:
        """What get_fp8_autocast_state returned."""
        (cls.FP8_ENABLED, cls.FP8_CALIBRATION, cls.FP8_RECIPE, cls.FP8_DISTRIBUTED_GROUP,
         cls.IS_FIRST_FP8_MODULE, cls.FP8_GRAPH_CAPTURING) = state  # fmt: skip

    set_autocast_state = set_fp8_autocast_state

    @classmethod
    def set_skip_fp8_weight_update_tensor(cls, skip: bool) -> None:
        """Kept as a number on the device, as the library does."""
        if cls.skip_fp8_weight_update_tensor is None:
            cls.skip_fp8_weight_update_tensor = torch.empty(1, dtype=torch.float32, device="cuda")
        cls.skip_fp8_weight_update_tensor.fill_(skip)

    @classmethod
    def get_skip_fp8_weight_update_tensor(cls) -> Any:
        """What was set."""
        return cls.skip_fp8_weight_update_tensor

    @classmethod
    def add_fp8_tensors_to_global_buffer(cls, fp8_meta: dict[str, Any]) -> None:
        """A module that a graph replays takes part in the next reduction of maxima."""
        cls._modules += fp8_meta.get("num_gemms", 1)

    @classmethod
    def reduce_and_update_fp8_tensors(cls, forward: bool = True) -> None:
        """Maxima of the tensors that were cast, reduced over the group; then the scales: delayed scaling."""
        modules, cls._modules = cls._modules, 0 if forward else cls._modules
        if not modules:
            return
        tensors = torch.empty(modules * (3 if forward else 2), dtype=torch.float32, device="cuda")
        if cls.FP8_DISTRIBUTED_GROUP is not None and tp.size_of(cls.FP8_DISTRIBUTED_GROUP) > 1:
            torch.distributed.all_reduce(
                tensors, op=torch.distributed.ReduceOp.MAX, group=cls.FP8_DISTRIBUTED_GROUP
            )
        operators.amax_kernel([tensors], [tensors])


@contextmanager
def fp8_autocast(
    enabled: bool = True,
    calibrating: bool = False,
    fp8_recipe: Any = None,
    fp8_group: Any = None,
    _graph: bool = False,
    **other: Any,
) -> Iterator[None]:
    """Products of the library's modules run in fp8 inside."""
    manager = FP8GlobalStateManager
    fp8_recipe = other.pop("recipe", fp8_recipe)
    fp8_group = other.pop("amax_reduction_group", fp8_group)
    before = manager.get_fp8_autocast_state()
    if enabled:
        able, reason = check_fp8_support()
        if not able:
            raise RuntimeError(reason)
        recipe = fp8_recipe if fp8_recipe is not None else get_default_fp8_recipe()
        kind = getattr(recipe, "kind", "unknown")
        if kind not in _COVERED:
            raise not_covered("transformer_engine.common.recipe", type(recipe).__name__)
        if getattr(recipe, "fp8_dpa", False) or getattr(recipe, "fp8_mha", False):
            raise not_covered("transformer_engine.pytorch", "DotProductAttention", why="(fp8 attention)")
        if recipe.mxfp8() and not check_mxfp8_support()[0]:
            raise RuntimeError(check_mxfp8_support()[1])
        manager.FP8_RECIPE, manager.FP8_DISTRIBUTED_GROUP = recipe, fp8_group
        if manager.AUTOCAST_DEPTH == 0:
            manager.IS_FIRST_FP8_MODULE = True
            manager._modules = 0
    manager.FP8_ENABLED, manager.FP8_CALIBRATION = enabled, calibrating
    manager.FP8_GRAPH_CAPTURING = _graph
    manager.AUTOCAST_DEPTH += 1
    try:
        yield
    finally:
        manager.AUTOCAST_DEPTH -= 1
        # A graph holds no reduction: who replays it reduces.
        if manager.AUTOCAST_DEPTH == 0 and enabled and torch.is_grad_enabled() and not _graph:
            recipe = manager.FP8_RECIPE
            if recipe.delayed() and recipe.reduce_amax:
                manager.reduce_and_update_fp8_tensors(forward=True)
        manager.set_fp8_autocast_state(before)


autocast = fp8_autocast


@contextmanager
def fp8_model_init(
    enabled: bool = True, recipe: Any = None, preserve_high_precision_init_val: bool = False
) -> Iterator[None]:
    """Parameters made inside are kept in fp8: not covered, unless switched off."""
    if enabled:
        raise not_covered("transformer_engine.pytorch", "fp8_model_init", why="(parameters kept in fp8)")
    yield


quantized_model_init = fp8_model_init

__all__ = [
    "DelayedScaling",
    "FP8GlobalStateManager",
    "Float8CurrentScaling",
    "autocast",
    "fp8_autocast",
    "fp8_model_init",
    "quantized_model_init",
]
__getattr__ = missing_names(__name__)
