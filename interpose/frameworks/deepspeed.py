"""DeepSpeed's own compiled operators.

DeepSpeed compiles them with nvcc or g++ when they are first used. Here its builders give modules with the
same functions: optimizers become one priced kernel that moves the same bytes, CPU optimizers are priced from
host memory's speed and not executed. The rest raises DeepSpeedOperatorNotModelled. With DS_ACCELERATOR=cpu
(a job that has no GPU) DeepSpeed's builders are left alone.
"""

from __future__ import annotations

import functools
import importlib
from types import ModuleType
from typing import Any

from interpose.extension_protocol import Extension
from interpose.frameworks.host_optimizers import HostOptimizers, moved_bytes

REMEDIES = {
    "async_io": ("offloading to NVMe", 'set the "device" of offload_optimizer and offload_param to "cpu"'),
    "gds": ("GPUDirect storage", 'set the "device" of offload_optimizer and offload_param to "cpu"'),
    "quantizer": (
        "quantized weights and gradients (ZeRO++)",
        "leave out zero_quantized_weights and zero_quantized_gradients",
    ),
    "fp_quantizer": ("quantized training", "leave the quantization out of the configuration"),
    "transformer": ("DeepSpeedTransformerLayer", "use the model's PyTorch layers"),
    "stochastic_transformer": ("the stochastic transformer layer", "use the model's PyTorch layers"),
    "random_ltd": ("random layer token drop", "leave data_efficiency.data_routing out of the configuration"),
    "sparse_attn": ("sparse attention", "use PyTorch's scaled_dot_product_attention or FlexAttention"),
    "evoformer_attn": ("evoformer attention", "use PyTorch's scaled_dot_product_attention"),
    "dc": ("DeepCompile", "leave compile.deepcompile out of the configuration"),
}
"""Operators that are asked for in training: what they are, and what to do without them."""


class DeepSpeedOperatorNotModelled(RuntimeError):
    """A DeepSpeed operator that phantom does not simulate; the text names it and the remedy."""

    def __init__(self, name: str) -> None:
        what, remedy = REMEDIES.get(name, ("its kernels", "use a configuration without it"))
        super().__init__(
            f"phantom does not simulate DeepSpeed's compiled operator '{name}' ({what}); remedy: {remedy}"
        )


def watch_builders(module: ModuleType, extension: Extension) -> None:
    """Changes what operator builders load; `module` is deepspeed.ops.op_builder.builder."""
    original = module.OpBuilder.load
    makers = {
        "fused_adam": _fused_adam,
        "fused_lamb": _fused_lamb,
        "fused_lion": _fused_lion,
        "cpu_adam": _cpu_adam,
        "cpu_adagrad": _cpu_adagrad,
        "cpu_lion": _cpu_lion,
    }
    loaded: dict[str, ModuleType] = {}

    @functools.wraps(original)
    def load(self: Any, verbose: bool = True) -> Any:
        if self.name in HOST_LIBRARIES or not _has_gpu():
            return original(self, verbose)
        if self.name not in makers:
            raise DeepSpeedOperatorNotModelled(self.name)
        if self.name not in loaded:
            loaded[self.name] = makers[self.name](HostOptimizers(extension))
        return loaded[self.name]

    module.OpBuilder.load = load


def watch_async_io(module: ModuleType) -> None:
    """Refuses the builders of storage (also GDSBuilder's, a subclass) before they build the pinned-memory
    library that they load first; `module` is deepspeed.ops.op_builder.async_io."""
    original = module.AsyncIOBuilder.load

    @functools.wraps(original)
    def load(self: Any, verbose: bool = False) -> Any:
        if _has_gpu():
            raise DeepSpeedOperatorNotModelled(self.name)
        return original(self, verbose)

    module.AsyncIOBuilder.load = load


def watch_partitioned_construction(module: ModuleType) -> None:
    """Imports torch._dynamo before `zero.Init` replaces torch.Tensor.__new__, which it wants as it is.

    A GPU's own kernels import it nowhere, but the reference implementations do that give shapes here.
    `module` is deepspeed.runtime.zero.partition_parameters.
    """
    contexts = module.InsertPostInitMethodToModuleSubClasses
    original = contexts.__enter__

    @functools.wraps(original)
    def __enter__(self: Any) -> Any:
        if self.enabled:
            importlib.import_module("torch._dynamo")
        return original(self)

    contexts.__enter__ = __enter__


HOST_LIBRARIES = ("utils", "pin_memory", "shm_comm")
"""Builders of plain C++ for the host, which work as they are."""


def _has_gpu() -> bool:
    from deepspeed.accelerator import get_accelerator

    return bool(get_accelerator().device_name() == "cuda")


def _module(name: str, **functions: Any) -> ModuleType:
    module: Any = ModuleType(f"phantom.{name}")
    for function_name, function in functions.items():
        setattr(module, function_name, function)
    return module


def _fused_adam(_: HostOptimizers) -> ModuleType:
    """csrc/adam/multi_tensor_adam.cu, which is Apex's kernel: lists of gradients, parameters and moments."""
    from interpose.standins import operators

    def multi_tensor_adam(chunk_size: int, overflow: Any, tensors: Any, *_: Any) -> None:
        written = [tensor for some in tensors[1:] for tensor in some]
        operators.multi_tensor_adam_kernel([*tensors[0], *written], written)

    return _module("fused_adam", multi_tensor_adam=multi_tensor_adam)


def _fused_lion(_: HostOptimizers) -> ModuleType:
    """csrc/lion/multi_tensor_lion.cu: reads gradients, updates parameters and momentum, as SGD does."""
    from interpose.standins import operators

    def multi_tensor_lion(chunk_size: int, overflow: Any, tensors: Any, *_: Any) -> None:
        written = [tensor for some in tensors[1:] for tensor in some]
        operators.multi_tensor_sgd_kernel([*tensors[0], *written], written)

    return _module("fused_lion", multi_tensor_lion=multi_tensor_lion)


def _fused_lamb(_: HostOptimizers) -> ModuleType:
    """csrc/lamb/fused_lamb_cuda_kernel.cu: an Adam pass that keeps the update and sums squares, then a pass
    that scales the update into the parameter; one tensor a call."""
    import torch

    from interpose.standins import operators

    def lamb(param: Any, out: Any, exp_avg: Any, exp_avg_sq: Any, grad: Any, *_: Any) -> Any:
        update = torch.empty_like(param)
        operators.multi_tensor_adam_kernel([grad, param, exp_avg, exp_avg_sq], [update, exp_avg, exp_avg_sq])
        operators.multi_tensor_sgd_kernel([update, param], [param, out] if out.numel() else [param])
        return torch.ones((), device=param.device)

    return _module("fused_lamb", lamb=lamb)


def _cpu_adam(price: HostOptimizers) -> ModuleType:
    """csrc/adam/cpu_adam.cpp."""
    name = "DeepSpeed CPUAdam"

    def create_adam(*_: Any) -> int:
        return 0

    def destroy_adam(*_: Any) -> int:
        return 0

    def adam_update(
        optimizer_id: int, step: int, lr: float, beta1: float, beta2: float, epsilon: float,
        weight_decay: float, bias_correction: bool, param: Any, grad: Any, exp_avg: Any, exp_avg_sq: Any,
    ) -> int:  # fmt: skip
        price.hold(name, [exp_avg, exp_avg_sq])
        price.charge(name, moved_bytes(read=[grad], updated=[param, exp_avg, exp_avg_sq]))
        return 0

    def adam_rollback(*arguments: Any) -> int:
        return adam_update(*arguments)

    def not_modelled(*_: Any) -> None:
        raise DeepSpeedOperatorNotModelled("zenflow_adam")

    return _module(
        "cpu_adam",
        create_adam=create_adam,
        destroy_adam=destroy_adam,
        adam_update=adam_update,
        adam_rollback=adam_rollback,
        zenflow_adam_create=not_modelled,
    )


def _cpu_adagrad(price: HostOptimizers) -> ModuleType:
    """csrc/adagrad/cpu_adagrad.cpp."""
    name = "DeepSpeed CPUAdagrad"

    def create_adagrad(*_: Any) -> int:
        return 0

    def destroy_adagrad(*_: Any) -> int:
        return 0

    def adagrad_update(
        optimizer_id: int, step: int, lr: float, epsilon: float, weight_decay: float, param: Any, grad: Any,
        exp_avg_sq: Any,
    ) -> int:  # fmt: skip
        price.hold(name, [exp_avg_sq])
        price.charge(name, moved_bytes(read=[grad], updated=[param, exp_avg_sq]))
        return 0

    return _module(
        "cpu_adagrad",
        create_adagrad=create_adagrad,
        destroy_adagrad=destroy_adagrad,
        adagrad_update=adagrad_update,
    )


def _cpu_lion(price: HostOptimizers) -> ModuleType:
    """csrc/lion/cpu_lion.cpp."""
    name = "DeepSpeed CPULion"

    def create_lion(*_: Any) -> int:
        return 0

    def destroy_lion(*_: Any) -> int:
        return 0

    def lion_update(
        optimizer_id: int, step: int, lr: float, beta1: float, beta2: float, weight_decay: float, param: Any,
        grad: Any, exp_avg: Any,
    ) -> int:  # fmt: skip
        price.hold(name, [exp_avg])
        price.charge(name, moved_bytes(read=[grad], updated=[param, exp_avg]))
        return 0

    return _module("cpu_lion", create_lion=create_lion, destroy_lion=destroy_lion, lion_update=lion_update)
