"""What PyTorch's Python does differently where the device is the CPU (`--cluster local-cpu`).

The simulated device is a CUDA device by name, so PyTorch would choose CUDA's defaults. The whole map from
what a CUDA device dispatches to what the CPU does is in docs/local-cpu.md.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType


def keep_loops(module: ModuleType) -> None:
    """Makes the optimizers of `module` loop over tensors, as they do for parameters on the CPU.

    `module` is torch.optim.optimizer or torch.optim.swa_utils. torch.optim defaults to `_foreach_` kernels
    for the devices of `_get_foreach_kernels_supported_devices()`, which has no CPU; gradient clipping asks
    `_has_foreach_support`, which has, and is left alone.
    """
    original: Callable[[], list[str]] = module._get_foreach_kernels_supported_devices

    def without_cuda() -> list[str]:
        return [device for device in original() if device != "cuda"]

    module._get_foreach_kernels_supported_devices = without_cuda  # type: ignore[attr-defined]
