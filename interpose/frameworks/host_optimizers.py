"""Prices optimizer steps over parameters that lie in host memory.

Their time depends on the server's memory, which its ranks share, and not on the machine that runs the
simulation. So it is computed, and large steps are not executed: their gradients came from a device that
computed nothing.
"""

from __future__ import annotations

import functools
import os
import types
from collections.abc import Sequence
from types import ModuleType
from typing import Any

from interpose.extension_protocol import Extension

PS_PER_S = 10**12

TORCH_SLOWDOWN = 5.5
"""PyTorch's own Adam on the CPU against DeepSpeed's CPUAdam: 5.0 to 6.3 times (ZeRO-Offload, Ren et al.,
USENIX ATC 2021, table 4, columns PT-CPU and CPU-Adam; quoted from
memory, not checked against the paper)."""

DEFAULT_BYTES_PER_S = 112e9


class HostOptimizers:
    """Charges the calling thread's clock for optimizers over host memory; one per process."""

    def __init__(self, extension: Extension) -> None:
        self._extension = extension
        self._held: dict[str, dict[int, int]] = {}

    def bytes_per_s(self) -> float:
        """This rank's share of the server's rate, in bytes per second."""
        from interpose import environment

        here = environment.read()
        rate = float(here.config.get("host_optimizer_bytes_per_s", DEFAULT_BYTES_PER_S))
        factor = (here.config.get("host_factor") or {}).get(str(here.node), 1.0)
        ranks = int(os.environ.get("LOCAL_WORLD_SIZE") or here.config.get("device_count") or 1)
        return rate * float(factor) / max(ranks, 1)

    def charge(self, name: str, moved_bytes: int, *, slowdown: float = 1.0) -> None:
        """Moves the clock by the time that reading and writing `moved_bytes` of host memory takes."""
        self._extension.host_work(name, round(moved_bytes * slowdown / self.bytes_per_s() * PS_PER_S))

    def hold(self, name: str, tensors: Sequence[Any]) -> None:
        """Notes tensors as the optimizer's state in host memory, each storage once."""
        held = self._held.setdefault(name, {})
        before = len(held)
        for tensor in tensors:
            held[tensor.data_ptr()] = tensor.numel() * tensor.element_size()
        if len(held) != before:
            self._extension.host_holds(name, sum(held.values()))


def moved_bytes(*, read: Sequence[Any] = (), updated: Sequence[Any] = ()) -> int:
    """Bytes that pass between memory and cores: `read` once, `updated` in and out."""

    def size(tensors: Sequence[Any]) -> int:
        return sum(t.numel() * t.element_size() for t in tensors)

    return size(read) + 2 * size(updated)


def watch_adam(module: ModuleType, extension: Extension) -> None:
    """Prices Adam and AdamW over host parameters; `module` is torch.optim.adam.

    Steps over small tensors are executed as well, so that a script's own small CPU model still trains.
    """
    from interpose.time import session

    price = HostOptimizers(extension)
    original = module.adam
    # Names of this module are bound here, since the wrapper looks globals up in torch.optim.adam.
    from_the_device, moved_by, slowdown = _from_the_device, moved_bytes, TORCH_SLOWDOWN

    def adam(
        params: Any, grads: Any, exp_avgs: Any, exp_avg_sqs: Any, max_exp_avg_sqs: Any, state_steps: Any,
        *args: Any, **kwargs: Any,
    ) -> Any:  # fmt: skip
        given = (params, grads, exp_avgs, exp_avg_sqs, max_exp_avg_sqs, state_steps, *args)
        if not params or not session.is_open() or not from_the_device(params):
            return original(*given, **kwargs)
        name = "torch.optim.Adam on the CPU"
        price.hold(name, [*exp_avgs, *exp_avg_sqs])
        moved = moved_by(read=grads, updated=[*params, *exp_avgs, *exp_avg_sqs])
        price.charge(name, moved, slowdown=slowdown)
        if moved < extension.lazy_host_bytes():
            return original(*given, **kwargs)
        for step in state_steps:
            step.add_(1)
        return None

    # TorchScript (torch.distributed.optim) compiles the wrapped source with the wrapper's globals.
    wrapper = types.FunctionType(adam.__code__, module.__dict__, "adam", closure=adam.__closure__)
    module.adam = functools.update_wrapper(wrapper, original)  # type: ignore[attr-defined]


def _from_the_device(params: Sequence[Any]) -> bool:
    """Whether this looks like an offloaded optimizer: host parameters in a process that uses the device."""
    import torch

    return torch.cuda.is_initialized() and all(p.device.type == "cpu" for p in params)
