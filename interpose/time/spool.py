"""Records the detail of this rank's steps where `phantom run` asked for it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from interpose.extension_protocol import Extension


def open_spool(extension: Extension, config: Mapping[str, Any], rank: int) -> bool:
    """Opens this rank's file as config["spool"] says and returns whether it records.

    The map is made by phantom/timeline/settings.py. Raises RuntimeError where the file cannot be written.
    """
    wanted = config.get("spool")
    if not wanted or (wanted.get("ranks") is not None and rank not in wanted["ranks"]):
        return False
    folder = Path(wanted["folder"])
    folder.mkdir(parents=True, exist_ok=True)
    first, last = wanted["steps"]
    extension.spool_open(str(folder / f"rank-{rank}.msgpack"), rank, first, last)
    return True
