"""Fitted constants of engine calls: one set per compute capability and kernel."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Any

from phantom.kernels.gpu import GpuSpec


@cache
def _groups() -> dict[str, dict[str, dict[str, float]]]:
    text = (resources.files("phantom.kernels") / "data" / "engine_calls.json").read_text(encoding="utf-8")
    groups: dict[str, Any] = json.loads(text)["capabilities"]
    return groups


def engine_constants(gpu: GpuSpec, kernel: str) -> Mapping[str, float] | None:
    """Return the constants of *kernel*, such as ``deepep.dispatch``, on *gpu*; None where there are none."""
    return _groups().get(".".join(map(str, gpu.capability)), {}).get(kernel)
