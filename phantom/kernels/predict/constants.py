"""Fitted constants of the predictor: one set per architecture and kernel class, none per row, model or GPU
instance.

``python -m phantom.kernels.calibrate.constant_fit`` writes ``data/constants.json``; hand-set entries say so
in the file.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from types import MappingProxyType
from typing import Any


@dataclass(frozen=True)
class Constants:
    """Constants of one architecture.

    Groups (``memory``, ``gemm.fp16``, ``attention.flash``) of named numbers.
    """

    architecture: str
    groups: Mapping[str, Mapping[str, float]]
    _merged: dict[str, Mapping[str, float]] = field(default_factory=dict, repr=False, compare=False)

    def group(self, name: str) -> Mapping[str, float]:
        """Return the group *name* over the groups it refines: ``gemm.fp16`` over ``gemm``.

        Raises KeyError naming the group and the architecture where nothing of that name is there.
        """
        cached = self._merged.get(name)
        if cached is not None:
            return cached
        merged: dict[str, float] = {}
        parts = name.split(".")
        for length in range(1, len(parts) + 1):
            merged.update(self.groups.get(".".join(parts[:length]), {}))
        if not merged:
            raise KeyError(f"no constants {name!r} for architecture {self.architecture!r}")
        self._merged[name] = MappingProxyType(merged)
        return self._merged[name]


def _read() -> dict[str, Any]:
    text = (resources.files("phantom.kernels") / "data" / "constants.json").read_text(encoding="utf-8")
    data: dict[str, Any] = json.loads(text)
    return data


@cache
def constants_for(architecture: str) -> Constants:
    """Return the constants of *architecture*: its own groups over those of the generation it inherits from.

    Raises KeyError for an architecture that the file does not have.
    """
    data = _read()["architectures"]
    if architecture not in data:
        raise KeyError(f"no constants for architecture {architecture!r}; known: {', '.join(sorted(data))}")
    return build_constants(architecture, data)


def build_constants(architecture: str, data: Mapping[str, Any]) -> Constants:
    """Return the constants of *architecture* out of *data* (the ``architectures`` part of the file)."""
    chain: list[Mapping[str, Any]] = []
    name: str | None = architecture
    while name is not None:
        chain.append(data[name])
        name = data[name].get("inherits")
    groups: dict[str, dict[str, float]] = {}
    for entry in reversed(chain):
        for group, values in entry.items():
            if group not in ("inherits", "note"):
                groups.setdefault(group, {}).update(values)
    return Constants(architecture, MappingProxyType({k: MappingProxyType(v) for k, v in groups.items()}))
