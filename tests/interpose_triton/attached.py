"""torch with the virtual device, a GPU's cost model, Triton's and Inductor's seams, for this process."""

from __future__ import annotations

import functools
import json
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import msgpack

from phantom.kernels.cost_model import CostModel

GPU = "h100"
CONFIG = {"device_count": 4, "capacity_bytes": 79 << 30, "values": True, "unknown_values": "healthy"}


@dataclass
class Launches:
    """What was priced and, by the clock, launched."""

    priced: Counter[str] = field(default_factory=Counter)
    requests: dict[str, Any] = field(default_factory=dict)

    def triton(self) -> list[str]:
        """Names of the Triton kernels that were priced."""
        return sorted(op.removeprefix("triton::") for op in self.priced if op.startswith("triton::"))


@functools.cache
def attach(gpu: str = GPU) -> tuple[ModuleType, Launches]:
    """Imports torch attached (once per process) and returns the extension and what it asks the cost model."""
    os.environ["PHANTOM_CONFIG"] = json.dumps(CONFIG)
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = tempfile.mkdtemp(prefix="phantom-test-inductor-")
    from interpose.startup import import_hook

    import_hook.install()
    import torch  # noqa: F401

    extension = sys.modules["interpose._C"]
    model = CostModel(gpu, mode="predict")
    launches = Launches()

    def price(request: bytes) -> bytes:
        for kernel in msgpack.unpackb(request, strict_map_key=False):
            launches.priced[kernel["op"]] += 1
            launches.requests[kernel["op"]] = kernel
        return model.cost_batch(request)

    extension.set_cost_callback(price)
    return extension, launches


def device_ms(call: Callable[[], Any], repeat: int = 1) -> float:
    """Virtual milliseconds of device time from an idle device to the end of `repeat` calls."""
    import torch

    torch.cuda.synchronize()
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    for _ in range(repeat):
        call()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end)
