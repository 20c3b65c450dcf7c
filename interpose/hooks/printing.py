"""Prints tensors of the device from one copy of them.

PyTorch's formatter looks at a tensor element by element until it finds one that is no whole number. Mostly
that is the first; the values of a simulated tensor are guesses, often whole numbers, so that it looks at all
of them, and each look is two kernels and a copy to the host in virtual time.
"""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any


def watch(module: ModuleType) -> None:
    """`module` is torch._tensor_str."""
    formatter = module._Formatter
    original = formatter.__init__

    @functools.wraps(original)
    def __init__(self: Any, tensor: Any) -> None:
        original(self, tensor.cpu() if tensor.is_cuda else tensor)

    formatter.__init__ = __init__
