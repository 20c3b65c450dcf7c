"""The one table of GPUs, ``data/gpus.toml``: cluster files, the virtual device and kernel prices read it."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:  # the same parser under its older name
    import tomli as tomllib

GPUS_FILE = Path(__file__).parents[1] / "data" / "gpus.toml"
_IDENTITY = ("title", "aliases", "architecture", "pcie_bytes_per_s", "source")


@dataclass(frozen=True, kw_only=True)
class KnownGpu:
    """One GPU of the table.

    `title` is the vendor's name, `aliases` other names in use, `architecture` the generation whose fitted
    constants it takes, `pcie_bytes_per_s` the host link in one direction, `source` where the figures come
    from. `settings` are the keys that a cluster file's ``[gpu]`` may override, as the file has them.
    """

    preset: str
    title: str
    aliases: tuple[str, ...]
    architecture: str
    pcie_bytes_per_s: float
    source: str
    settings: Mapping[str, Any]


@lru_cache(maxsize=1)
def known_gpus() -> Mapping[str, KnownGpu]:
    """Every GPU of the table by its preset's name, in the file's order."""
    data = tomllib.loads(GPUS_FILE.read_text(encoding="utf-8"))
    return MappingProxyType({preset: _known(preset, table) for preset, table in data.items()})


def _known(preset: str, table: Mapping[str, Any]) -> KnownGpu:
    return KnownGpu(
        preset=preset,
        title=table["title"],
        aliases=tuple(table["aliases"]),
        architecture=table["architecture"],
        pcie_bytes_per_s=float(table["pcie_bytes_per_s"]),
        source=table["source"],
        settings=MappingProxyType({key: value for key, value in table.items() if key not in _IDENTITY}),
    )
