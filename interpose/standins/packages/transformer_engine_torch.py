"""Stand-in of the extension module under Transformer Engine: what frameworks call in it directly."""

from __future__ import annotations

from typing import Any

import torch
from transformer_engine.pytorch.constants import DType

from interpose.standins.surface import missing_names

__all__ = ["DType", "thd_get_partitioned_indices"]


def thd_get_partitioned_indices(cu_seqlens: Any, total_tokens: int, world_size: int, rank: int) -> Any:
    """The tokens of packed sequences that belong to a rank of a context-parallel group."""
    return torch.arange(total_tokens // world_size, dtype=torch.int32, device=cu_seqlens.device)


__getattr__ = missing_names(__name__)
