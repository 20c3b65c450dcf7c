"""Fused optimizers as Apex and Transformer Engine have them: one multi-tensor kernel per list of data types.

Adam follows apex/optimizers/fused_adam.py and transformer_engine/pytorch/optimizers/fused_adam.py: moments in
fp32 (or `exp_avg_dtype`), optional fp32 master copies of 16-bit parameters, the step count on the host.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

from interpose.standins import operators
from interpose.standins.surface import not_covered


def by_dtype(parameters: Iterable[Any], gradients: Iterable[Any]) -> list[tuple[list[Any], list[Any]]]:
    """Splits parameters and gradients into the lists that the library launches one kernel for each."""
    lists: dict[tuple[Any, Any], tuple[list[Any], list[Any]]] = {}
    for parameter, gradient in zip(parameters, gradients):
        pair = lists.setdefault((parameter.dtype, gradient.dtype), ([], []))
        pair[0].append(parameter)
        pair[1].append(gradient)
    return list(lists.values())


def local(tensor: Any) -> Any:
    """The rank's own part of a DTensor; other tensors as they are."""
    return getattr(tensor, "_local_tensor", tensor)


def evaluate(closure: Callable[[], Any] | None) -> Any:
    """What the closure of a step gives, with gradients; None without one."""
    if closure is None:
        return None
    with torch.enable_grad():
        return closure()


class FusedAdam(torch.optim.Optimizer):
    """Adam and AdamW in one kernel per data type."""

    library = "apex.optimizers"

    def __init__(
        self, params: Any, lr: float = 1e-3, bias_correction: bool = True,
        betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8, adam_w_mode: bool = True,
        weight_decay: float = 0.0, amsgrad: bool = False, set_grad_none: bool | None = None,
        capturable: bool = False, master_weights: bool = False, use_decoupled_grad: bool = False,
        store_param_remainders: bool = False, exp_avg_dtype: torch.dtype = torch.float32,
        exp_avg_sq_dtype: torch.dtype = torch.float32, master_weight_dtype: torch.dtype = torch.float32,
    ) -> None:  # fmt: skip
        if amsgrad:
            raise RuntimeError("FusedAdam does not support the AMSGrad variant.")
        defaults = {
            "lr": lr, "bias_correction": bias_correction, "betas": betas, "eps": eps,
            "weight_decay": weight_decay,
        }  # fmt: skip
        super().__init__(params, defaults)
        self.adam_w_mode = 1 if adam_w_mode else 0
        self.set_grad_none = set_grad_none if set_grad_none is not None else True
        self.capturable = capturable
        self.master_weights = bool(master_weights)
        self.use_decoupled_grad = use_decoupled_grad
        self.store_param_remainders = store_param_remainders and self.master_weights
        self.exp_avg_dtype, self.exp_avg_sq_dtype = exp_avg_dtype, exp_avg_sq_dtype
        self.master_weight_dtype = master_weight_dtype
        self.name_to_dtype_map = {
            "exp_avg": exp_avg_dtype, "exp_avg_sq": exp_avg_sq_dtype, "master_param": master_weight_dtype,
        }  # fmt: skip
        self._scales: dict[Any, dict[str, Any]] = {}

    def zero_grad(self, set_to_none: bool | None = None) -> None:
        """Drops the gradients (or zeroes them)."""
        if self.use_decoupled_grad:
            for group in self.param_groups:
                for parameter in group["params"]:
                    if hasattr(parameter, "decoupled_grad"):
                        parameter.decoupled_grad = None
            return
        super().zero_grad(set_to_none=self.set_grad_none if set_to_none is None else set_to_none)

    def _gradient(self, parameter: Any) -> Any:
        return getattr(parameter, "decoupled_grad", None) if self.use_decoupled_grad else parameter.grad

    def initialize_state(self, parameter: Any, store_param_remainders: bool = False) -> None:
        """Makes the moments, and the master copy where wanted."""
        state = self.state[parameter]
        for name in ("exp_avg", "exp_avg_sq"):
            self._initialize_state(parameter, name, False, store_param_remainders=False)
        if self.master_weights and "master_param" not in state:
            self._initialize_state(
                parameter, "master_param", False, store_param_remainders=store_param_remainders
            )

    def _initialize_state(
        self, param: Any, state_name: str, zero_buffer: bool, store_param_remainders: bool = False
    ) -> None:
        dtype = self.name_to_dtype_map[state_name]
        if store_param_remainders:
            dtype = torch.int16
        if dtype == torch.uint8:
            raise not_covered(self.library, "FusedAdam", why="(moments in fp8)")
        if state_name == "master_param" and not store_param_remainders:
            self.state[param][state_name] = param.detach().clone().to(dtype)
        else:
            self.state[param][state_name] = torch.zeros_like(param, dtype=dtype)

    def set_scaled_state(self, param: Any, state_name: str, unscaled_state: Any) -> None:
        """Sets one state tensor from an unscaled one, as when a checkpoint is loaded."""
        state = self.state[param]
        if state_name not in state:
            self._initialize_state(param, state_name, False)
        state[state_name].copy_(unscaled_state)

    def get_unscaled_state(self, param: Any, state_name: str) -> Any:
        """One state tensor in fp32."""
        return self.state[param][state_name].float()

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None, grad_scaler: Any = None) -> Any:  # type: ignore[override]
        """One step on all parameters that have a gradient."""
        loss = evaluate(closure)
        for group in self.param_groups:
            if not group["params"]:
                continue
            group["step"] = group.get("step", 0) + 1
            having = [p for p in group["params"] if self._gradient(p) is not None]
            for parameter in having:
                if "exp_avg" not in self.state[parameter]:
                    self.initialize_state(
                        parameter, self.store_param_remainders and parameter.dtype == torch.bfloat16
                    )
            for parameters, gradients in by_dtype(having, [self._gradient(p) for p in having]):
                self._launch(parameters, gradients)
        return loss

    def _launch(self, parameters: list[Any], gradients: list[Any]) -> None:
        states = [self.state[p] for p in parameters]
        written = [local(p) for p in parameters]
        for name in ("exp_avg", "exp_avg_sq", "master_param"):
            written += [local(state[name]) for state in states if name in state]
        read = [local(g) for g in gradients] + written
        if any("master_param" in s and s["master_param"].dtype == torch.float32 for s in states):
            read = read[: len(gradients)] + read[len(gradients) + len(parameters) :]  # p is written only
        operators.multi_tensor_adam_kernel(read, written)


class FusedSGD(torch.optim.Optimizer):
    """SGD with momentum in one kernel per data type."""

    def __init__(
        self, params: Any, lr: float = 1e-3, momentum: float = 0.0, dampening: float = 0.0,
        weight_decay: float = 0.0, nesterov: bool = False, wd_after_momentum: bool = False,
        materialize_master_grads: bool = True, set_grad_none: bool = False,
    ) -> None:  # fmt: skip
        if nesterov and (momentum <= 0 or dampening != 0):
            raise ValueError("Nesterov momentum requires a momentum and zero dampening")
        defaults = {
            "lr": lr, "momentum": momentum, "dampening": dampening, "weight_decay": weight_decay,
            "nesterov": nesterov,
        }  # fmt: skip
        super().__init__(params, defaults)
        self.set_grad_none = set_grad_none

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]
        """One step on all parameters that have a gradient."""
        loss = evaluate(closure)
        for group in self.param_groups:
            having = [p for p in group["params"] if p.grad is not None]
            for parameter in having:
                if group["momentum"] and "momentum_buffer" not in self.state[parameter]:
                    self.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
            for parameters, gradients in by_dtype(having, [p.grad for p in having]):
                written = [local(p) for p in parameters]
                if group["momentum"]:
                    written += [local(self.state[p]["momentum_buffer"]) for p in parameters]
                operators.multi_tensor_sgd_kernel([local(g) for g in gradients] + written, written)
        return loss


class FusedLAMB(torch.optim.Optimizer):
    """LAMB: the norm of all gradients, the update's norms, the update; each one multi-tensor kernel."""

    def __init__(
        self, params: Any, lr: float = 1e-3, bias_correction: bool = True,
        betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-6, weight_decay: float = 0.01,
        amsgrad: bool = False, adam_w_mode: bool = True, grad_averaging: bool = True,
        set_grad_none: bool = True, max_grad_norm: float = 1.0, use_nvlamb: bool = False,
    ) -> None:  # fmt: skip
        if amsgrad:
            raise RuntimeError("FusedLAMB does not support the AMSGrad variant.")
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]
        """One step on all parameters that have a gradient."""
        loss = evaluate(closure)
        everything = [p.grad for g in self.param_groups for p in g["params"] if p.grad is not None]
        if everything:
            l2norm(everything)
        for group in self.param_groups:
            having = [p for p in group["params"] if p.grad is not None]
            for parameter in having:
                if "exp_avg" not in self.state[parameter]:
                    self.state[parameter]["exp_avg"] = torch.zeros_like(parameter)
                    self.state[parameter]["exp_avg_sq"] = torch.zeros_like(parameter)
            for parameters, gradients in by_dtype(having, [p.grad for p in having]):
                moments = [self.state[p][name] for name in ("exp_avg", "exp_avg_sq") for p in parameters]
                # Stage 1 writes the update over the gradients, stage 2 applies it by the ratio of norms.
                operators.multi_tensor_adam_kernel([*gradients, *parameters, *moments], gradients + moments)
                l2norm(parameters, per_tensor=True)
                l2norm(gradients, per_tensor=True)
                operators.multi_tensor_sgd_kernel(gradients + parameters, parameters)
        return loss


def l2norm(tensors: list[Any], *, per_tensor: bool = False) -> tuple[Any, Any]:
    """The norm of all tensors together, and of each where wanted: `amp_C.multi_tensor_l2norm`."""
    device = tensors[0].device
    total = torch.empty(1, dtype=torch.float32, device=device)
    each = torch.empty(len(tensors) if per_tensor else 0, dtype=torch.float32, device=device)
    operators.multi_tensor_l2norm_kernel(tensors, [total, each] if per_tensor else [total])
    return total, each
