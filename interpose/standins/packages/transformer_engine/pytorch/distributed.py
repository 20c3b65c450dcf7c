"""Random states, activation recomputation and collectives of tensor parallelism."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch

from interpose.standins import tensor_parallel as tp
from interpose.standins.surface import missing_names

_all_rng_states: dict[str, Any] = {}
_recompute = {"enabled": False, "phase": False}


def graph_safe_rng_available() -> bool:
    """Whether generators can be registered with CUDA graphs."""
    return hasattr(torch.Generator, "graphsafe_get_state")


def get_all_rng_states() -> dict[str, Any]:
    """The tracked states."""
    return _all_rng_states


def set_all_rng_states(states: dict[str, Any]) -> None:
    """Replaces the tracked states."""
    global _all_rng_states
    _all_rng_states = states


def _default_generator() -> torch.Generator:
    torch.cuda.init()
    return torch.cuda.default_generators[torch.cuda.current_device()]


class CudaRNGStatesTracker:
    """Named states of the device's generator."""

    def __init__(self) -> None:
        self.states_: dict[str, Any] = {}
        self.seeds_: set[int] = set()

    def reset(self) -> None:
        """Forgets all."""
        self.states_, self.seeds_ = {}, set()

    def get_states(self) -> dict[str, Any]:
        """A copy of the states."""
        return dict(self.states_)

    def set_states(self, states: dict[str, Any]) -> None:
        """Replaces the states."""
        self.states_ = states
        set_all_rng_states(self.states_)

    def add(self, name: str, seed: int) -> None:
        """A new state from a seed."""
        if seed in self.seeds_:
            raise RuntimeError(f"seed {seed} already exists")
        if name in self.states_:
            raise RuntimeError(f"cuda rng state {name} already exists")
        self.seeds_.add(seed)
        # A generator's state, not its bytes: CUDA graphs register those and replay with them.
        self.states_[name] = _default_generator().clone_state()
        self.states_[name].manual_seed(seed)
        set_all_rng_states(self.states_)

    @contextmanager
    def fork(self, name: str = "model-parallel-rng") -> Iterator[None]:
        """Runs with that state and puts the old one back."""
        if name not in self.states_:
            raise KeyError(f"cuda rng state {name} is not added")
        generator = _default_generator()
        before = generator.graphsafe_get_state()
        generator.graphsafe_set_state(self.states_[name])
        try:
            yield
        finally:
            self.states_[name] = generator.graphsafe_get_state()
            generator.graphsafe_set_state(before)


@contextmanager
def activation_recompute_forward(
    activation_recompute: bool = False, recompute_phase: bool = False
) -> Iterator[None]:
    """Marks the forward pass that is recomputed, and its recomputation."""
    before = dict(_recompute)
    _recompute.update(enabled=activation_recompute, phase=recompute_phase)
    try:
        yield
    finally:
        _recompute.update(before)


def is_fp8_activation_recompute_enabled() -> bool:
    """Whether fp8 state is kept for a recomputation."""
    return _recompute["enabled"]


def in_fp8_activation_recompute_phase() -> bool:
    """Whether this is the recomputation."""
    return _recompute["phase"]


class _Checkpoint(torch.autograd.Function):
    """Keeps the inputs (the first split over the tensor-parallel group where wanted) and random states."""

    @staticmethod
    def forward(ctx: Any, run: Any, distribute: bool, tracker: Any, group: Any, context_fn: Any, kwargs: Any,
                *args: Any) -> Any:  # fmt: skip
        ctx.run, ctx.kwargs, ctx.tracker, ctx.group = run, kwargs, tracker, group
        ctx.cuda_state = torch.cuda.get_rng_state()
        ctx.tracked = tracker().get_states() if tracker is not None else None
        ctx.recompute_context = context_fn()[1] if context_fn is not None else nullcontext()
        with torch.no_grad(), activation_recompute_forward(activation_recompute=True):
            outputs = run(*args, **kwargs)
        ctx.distribute = distribute and tp.size_of(group) > 1
        kept = list(args)
        if ctx.distribute:
            ctx.first_shape = args[0].shape
            flat = args[0].detach().view(-1)
            share = flat.numel() // tp.size_of(group)
            rank = torch.distributed.get_rank(group)
            kept[0] = flat[rank * share : (rank + 1) * share].clone()
        ctx.places = [isinstance(a, torch.Tensor) for a in kept]
        ctx.plain = [None if isinstance(a, torch.Tensor) else a for a in kept]
        ctx.save_for_backward(*[a for a in kept if isinstance(a, torch.Tensor)])
        return outputs

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        tensors = list(ctx.saved_tensors)
        inputs = [tensors.pop(0) if is_tensor else plain for is_tensor, plain in zip(ctx.places, ctx.plain)]
        if ctx.distribute:
            whole, _ = tp.gather_first(inputs[0], ctx.group)
            inputs[0] = whole.view(ctx.first_shape)
        before = torch.cuda.get_rng_state()
        tracked = ctx.tracker().get_states() if ctx.tracker is not None else None
        torch.cuda.set_rng_state(ctx.cuda_state)
        if ctx.tracker is not None:
            ctx.tracker().set_states(ctx.tracked)
        detached = [
            a.detach().requires_grad_(a.requires_grad or (i == 0 and ctx.distribute))
            if isinstance(a, torch.Tensor) and a.is_floating_point()
            else a
            for i, a in enumerate(inputs)
        ]
        with torch.enable_grad(), ctx.recompute_context, activation_recompute_forward(True, True):
            outputs = ctx.run(*detached, **ctx.kwargs)
        torch.cuda.set_rng_state(before)
        if ctx.tracker is not None:
            ctx.tracker().set_states(tracked)
        if isinstance(outputs, torch.Tensor):
            outputs = (outputs,)
        pairs = [
            (out, grad)
            for out, grad in zip(outputs, grads)
            if isinstance(out, torch.Tensor) and out.requires_grad
        ]
        torch.autograd.backward([out for out, _ in pairs], [grad for _, grad in pairs])
        found = tuple(a.grad if isinstance(a, torch.Tensor) else None for a in detached)
        return (None, None, None, None, None, None, *found)


def checkpoint(function: Any, *args: Any, **kwargs: Any) -> Any:
    """Runs `function` without keeping its activations, and again in the backward pass."""
    distribute = kwargs.pop("distribute_saved_activations", False)
    tracker = kwargs.pop("get_rng_state_tracker", None)
    group = kwargs.pop("tp_group", None)
    context_fn = kwargs.pop("context_fn", None)
    kwargs.pop("determinism_check", None), kwargs.pop("debug", None)
    if not kwargs.pop("use_reentrant", True):
        from torch.utils.checkpoint import checkpoint as plain

        more = {"context_fn": context_fn} if context_fn is not None else {}
        return plain(function, *args, use_reentrant=False, **more, **kwargs)
    if not torch.is_grad_enabled():
        return function(*args, **kwargs)
    return _Checkpoint.apply(function, distribute, tracker, group, context_fn, kwargs, *args)


def gather_along_first_dim(
    inp: Any, process_group: Any, async_op: bool = False, quantizer: Any = None
) -> tuple[Any, Any]:
    """All ranks' parts, and the work to wait for."""
    return tp.gather_first(inp, process_group, async_op=async_op)


def reduce_scatter_along_first_dim(inp: Any, tp_group: Any, async_op: bool = False) -> tuple[Any, Any]:
    """The rank's part of the sum, and the work to wait for."""
    return tp.reduce_scatter_first(inp, tp_group, async_op=async_op)


def allreduce(inp: Any, tp_group: Any = None, async_op: bool = False) -> tuple[Any, Any]:
    """The sum, and the work to wait for."""
    return tp.all_reduce(inp, tp_group, async_op=async_op)


def get_distributed_world_size(group: Any = None) -> int:
    """Ranks of the group."""
    return torch.distributed.get_world_size(group) if torch.distributed.is_initialized() else 1


def get_distributed_rank(group: Any = None) -> int:
    """This rank in the group."""
    return torch.distributed.get_rank(group)


__getattr__ = missing_names(__name__)
