"""Optimizers of bitsandbytes: states of 8 bits with a scale per block, one kernel per parameter.

bitsandbytes/optim/optimizer.py of 0.48: a parameter under `min_8bit_size` elements keeps fp32 states; an
8-bit state has the parameter's shape, an fp32 maximum per 256 elements and a table of 256 values that all
parameters share. Paged states are managed memory there, which moves to the host under pressure; here they
are ordinary device memory.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from interpose.standins import operators
from interpose.standins.optimizers import evaluate, local

BLOCK = 256
TABLE_VALUES = 256


class GlobalOptimManager:
    """Settings of single parameters, by module and name."""

    _instance: GlobalOptimManager | None = None

    def __init__(self) -> None:
        self.overrides: list[tuple[Any, str, dict[str, Any]]] = []
        self.by_parameter: dict[int, dict[str, Any]] = {}

    @classmethod
    def get_instance(cls) -> GlobalOptimManager:
        """The one manager of the process."""
        if cls._instance is None:
            cls._instance = cls()
        return cls._instance

    def register_module_override(self, module: Any, param_name: str, config: dict[str, Any]) -> None:
        """Settings for `module.param_name`."""
        self.overrides.append((module, param_name, config))

    def register_parameters(self, params: Any) -> None:
        """Notes parameters; their settings are looked up when their state is made."""

    def override_config(
        self, parameters: Any, key: str | None = None, value: Any = None,
        key_value_dict: dict[str, Any] | None = None,
    ) -> None:  # fmt: skip
        """Settings for parameters."""
        given = dict(key_value_dict or {})
        if key is not None:
            given[key] = value
        for parameter in [parameters] if isinstance(parameters, torch.Tensor) else parameters:
            self.by_parameter.setdefault(id(parameter), {}).update(given)

    def settings(self, parameter: Any) -> dict[str, Any]:
        """What was set for this parameter."""
        found = dict(self.by_parameter.get(id(parameter), {}))
        for module, name, config in self.overrides:
            if getattr(module, name, None) is parameter:
                found.update(config)
        return found


class BlockwiseOptimizer(torch.optim.Optimizer):
    """What all have in common: `states` tensors per parameter, of `optim_bits` bits."""

    states = 2
    bits = 32

    def __init__(
        self, params: Any, lr: float = 1e-3, *_: Any, optim_bits: int | None = None,
        min_8bit_size: int = 4096, args: Any = None, **named: Any,
    ) -> None:  # fmt: skip
        self._bits = optim_bits if optim_bits is not None else self.bits
        self._min_8bit_size = min_8bit_size
        self._table: Any = None
        super().__init__(params, {"lr": lr, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.0, **named})

    def init_state(self, parameter: Any) -> None:
        """Makes the states of one parameter."""
        settings = GlobalOptimManager.get_instance().settings(parameter)
        bits = int(settings.get("optim_bits", self._bits))
        if parameter.numel() < self._min_8bit_size:
            bits = 32
        state = self.state[parameter]
        state["step"] = 0
        for number in range(1, self.states + 1):
            dtype = torch.uint8 if bits == 8 else torch.float32
            state[f"state{number}"] = torch.zeros_like(parameter, dtype=dtype)
            if bits == 8:
                blocks = -(-parameter.numel() // BLOCK)
                state[f"absmax{number}"] = torch.zeros(blocks, dtype=torch.float32, device=parameter.device)
        if bits == 8:
            if self._table is None:
                self._table = torch.zeros(self.states, TABLE_VALUES, device=parameter.device)
            state["qmap"] = self._table

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]
        """One kernel for every parameter that has a gradient."""
        loss = evaluate(closure)
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                if not state:
                    self.init_state(parameter)
                state["step"] += 1
                kept = [state[name] for name in state if name.startswith(("state", "absmax"))]
                written = [local(tensor) for tensor in (parameter, *kept)]
                operators.blockwise_optimizer_kernel([local(parameter.grad), *written], written)
        return loss


class Adam(BlockwiseOptimizer):
    """Adam; `optim_bits=8` for 8-bit states."""


class Adam8bit(Adam):
    """Adam with 8-bit states."""

    bits = 8


class Adam32bit(Adam):
    """Adam with fp32 states."""


class PagedAdam(Adam):
    """Adam whose states may be paged out."""


class PagedAdam8bit(Adam8bit):
    """8-bit Adam whose states may be paged out."""


class PagedAdam32bit(Adam):
    """Adam whose states may be paged out."""


class AdamW(BlockwiseOptimizer):
    """AdamW; `optim_bits=8` for 8-bit states."""


class AdamW8bit(AdamW):
    """AdamW with 8-bit states."""

    bits = 8


class AdamW32bit(AdamW):
    """AdamW with fp32 states."""


class PagedAdamW(AdamW):
    """AdamW whose states may be paged out."""


class PagedAdamW8bit(AdamW8bit):
    """8-bit AdamW whose states may be paged out."""


class PagedAdamW32bit(AdamW):
    """AdamW whose states may be paged out."""


class Lion(BlockwiseOptimizer):
    """Lion: one state."""

    states = 1


class Lion8bit(Lion):
    """Lion with an 8-bit state."""

    bits = 8


class Lion32bit(Lion):
    """Lion with an fp32 state."""


class PagedLion(Lion):
    """Lion whose state may be paged out."""


class PagedLion8bit(Lion8bit):
    """8-bit Lion whose state may be paged out."""


class PagedLion32bit(Lion):
    """Lion whose state may be paged out."""


class SGD(BlockwiseOptimizer):
    """SGD with momentum: one state."""

    states = 1


class SGD8bit(SGD):
    """SGD with an 8-bit momentum."""

    bits = 8


class SGD32bit(SGD):
    """SGD with an fp32 momentum."""


class RMSprop(BlockwiseOptimizer):
    """RMSprop: one state."""

    states = 1


class RMSprop8bit(RMSprop):
    """RMSprop with an 8-bit state."""

    bits = 8


class RMSprop32bit(RMSprop):
    """RMSprop with an fp32 state."""


class Adagrad(BlockwiseOptimizer):
    """Adagrad: one state."""

    states = 1


class Adagrad8bit(Adagrad):
    """Adagrad with an 8-bit state."""

    bits = 8


class Adagrad32bit(Adagrad):
    """Adagrad with an fp32 state."""


class AdEMAMix(BlockwiseOptimizer):
    """AdEMAMix: three states, of which bitsandbytes packs two into one tensor of twice the size."""

    states = 3


class AdEMAMix8bit(AdEMAMix):
    """AdEMAMix with 8-bit states."""

    bits = 8


class AdEMAMix32bit(AdEMAMix):
    """AdEMAMix with fp32 states."""


class PagedAdEMAMix(AdEMAMix):
    """AdEMAMix whose states may be paged out."""


class PagedAdEMAMix8bit(AdEMAMix8bit):
    """8-bit AdEMAMix whose states may be paged out."""


class LAMB(BlockwiseOptimizer):
    """LAMB."""


class LARS(BlockwiseOptimizer):
    """LARS: one state."""

    states = 1
